"""Generated texts in many scripts, with characters that tokenizers tend to get wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

_WORDS = """\
the quick brown fox don't I'LL we've naïve café Straße 1234567890 3.14 0x1F a_b x==y https://a.b/c?d=e&f
Grüße Ελληνικά κόσμος Привет мир שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก 你好，世界！ こんにちは カタカナ
안녕하세요 வணக்கம் ሰላም გამარჯობა Việt Nam İstanbul ﬁn ½ Ⅷ ①
"""
WORDS = tuple(_WORDS.split())
_EMOJI = ("😀", "👩‍👩‍👧", "👍🏽", "🇫🇷", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣")
_MARKS = (
    "e\u0301",
    "n\u0303",
    "a\u0308\u0323",
    "\u0301",
    "q\u0307\u0323",
    "\u1112\u1161\u11ab",
    "\u0915\u094d\u0937",
)
_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n\n",
    " \n ",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\u2028",
    "        ",
)
_ODD = (
    "▁",
    "▁▁a",
    "\ufffd",
    "\ufeff",
    "\u200d",
    "\x07",
    "\x7f",
    "\ue000",
    "<0x41>",
    "Ġ",
    "##s",
    "''",
    "'s",
    " .",
    " n't",
)
_SCRIPTS = (
    (0x21, 0x7E),
    (0xA1, 0x24F),
    (0x370, 0x3FF),
    (0x400, 0x52F),
    (0x5D0, 0x5EA),
    (0x600, 0x6FF),
    (0x900, 0x97F),
    (0xB80, 0xBFF),
    (0xE01, 0xE5B),
    (0x10A0, 0x10FF),
    (0x1200, 0x135A),
    (0x3041, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1F64F),
    (0x20000, 0x2A6DF),
)


def script_texts(number: int, special: Sequence[str] = (), seed: int = 0) -> list[str]:
    """Return `number` texts, always the same. `special`: tokens that may occur in them."""
    choose = random.Random(seed)
    sources = (WORDS, WORDS, _SPACES, _SPACES, _EMOJI, _MARKS, _ODD, tuple(special) or WORDS)

    def piece() -> str:
        if choose.random() < 0.2:
            first, last = choose.choice(_SCRIPTS)
            return "".join(chr(choose.randint(first, last)) for _ in range(choose.randint(1, 5)))
        return choose.choice(choose.choice(sources))

    def separator() -> str:
        return choose.choice(("", "", " "))

    return ["".join(separator() + piece() for _ in range(choose.randint(1, 12))) for _ in range(number)]
