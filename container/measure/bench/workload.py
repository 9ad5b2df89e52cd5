"""Requests for a server: seeded prompts of exact token counts, made of words, without common prefixes.

Tokens are counted as the server does: by the model's tokenizer, with the special tokens that it adds to a plain text.
The same workload and tokenizer always give the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from container.measure.bench.lengths import Lengths

_COMMON_WORDS = (
    "a I of to in is it on as at by we the and for are was one all can her has out our day get see new two way who "
    "boy did its let put say she too use water house world river stone paper green table music light small large "
    "about after again below could every first found great hand high home just know last left life little long made "
    "make many more most move much must name never night number often other over part people place point right same"
)
"""For tokenizers with hardly any word in one piece; every language model's tokenizer can encode these."""
_WORD_LETTERS = range(4, 13)
_SPACES = ("\u0120", "\u2581")
_MAX_TRIES = 200
"""Changes of a prompt until its count fits. It fits at once if words are one token each."""


class BenchError(Exception):
    """A benchmark cannot be run. The text is for users."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Number and size of requests, and number of users. All counts are at least 1.

    Raises BenchError when one is not.
    """

    prompt_tokens: int
    """Mean tokens of a prompt, special tokens included."""
    output_tokens: int
    """Mean tokens of an answer."""
    num_requests: int
    num_users: int
    seed: int
    lengths: Lengths = Lengths.FIXED

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "num_requests", "num_users"):
            value = getattr(self, name)
            if value < 1:
                raise BenchError(f"{name}: got {value}; allowed: 1 or more")

    def describe(self) -> str:
        return (
            f"{self.num_requests} requests by {self.num_users} users,"
            f" {self.lengths.describe(self.prompt_tokens, self.output_tokens)}"
        )


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request: a prompt and the exact length of its answer."""

    index: int
    """Index in the workload, from 0."""
    prompt: str
    prompt_tokens: int
    output_tokens: int


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of `path`: a folder with tokenizer.json, or such a file.

    Raises: BenchError.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise BenchError(
            f"{file}: no such file; a tokenizer is a model folder with tokenizer.json, or such a file"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise BenchError(f"{file}: not a tokenizer: {error}") from error
    # Some files keep settings of the training run; the server neither truncates nor pads prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    num_tokens: int
    """Tokens that it adds to a text when it follows a space."""


def make_requests(workload: Workload, tokenizer: Tokenizer) -> tuple[BenchRequest, ...]:
    """The requests of a workload. Raises: BenchError when no prompt has that many tokens with this tokenizer."""
    rng = random.Random(f"{workload.seed}/{workload.prompt_tokens}")
    count, lengths = workload.num_requests, workload.lengths
    # Generators of their own: a change of one mean leaves the other token counts unchanged.
    prompt_tokens = lengths.prompt_tokens(workload.prompt_tokens, count, random.Random(f"{workload.seed}/in"))
    output_tokens = lengths.output_tokens(
        workload.output_tokens, count, random.Random(f"{workload.seed}/out")
    )
    texts = _vocabulary(tokenizer)
    words = _measured(texts, tokenizer)
    openings = _openings(texts, count, min(prompt_tokens), tokenizer, rng)
    return tuple(
        BenchRequest(index, _prompt(opening, tokens_in, words, tokenizer, rng), tokens_in, tokens_out)
        for index, (opening, tokens_in, tokens_out) in enumerate(
            zip(openings, prompt_tokens, output_tokens, strict=True)
        )
    )


def _count(text: str, tokenizer: Tokenizer) -> int:
    """Tokens of a whole prompt, as counted by the server."""
    return len(tokenizer.encode(text, add_special_tokens=True).ids)


def _vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Words for prompts: those that are one token, and common ones."""
    pieces = tokenizer.get_vocab(with_added_tokens=False)
    # Byte-level and sentencepiece tokenizers mark pieces after a space; others may be the end of a longer word.
    marked = {piece[1:] for piece in pieces if piece[:1] in _SPACES}
    found = {
        piece
        for piece in marked or pieces
        if len(piece) in _WORD_LETTERS and piece.isascii() and piece.isalpha() and piece.islower()
    }
    # The order of a set differs between processes.
    return sorted(found.union(_COMMON_WORDS.split()))


def _measured(texts: Sequence[str], tokenizer: Tokenizer) -> list[_Word]:
    """The words, the cheapest first."""
    before = "and"
    base = len(tokenizer.encode(before, add_special_tokens=False).ids)
    encoded = tokenizer.encode_batch([f"{before} {text}" for text in texts], add_special_tokens=False)
    words = [_Word(text, len(one.ids) - base) for text, one in zip(texts, encoded, strict=True)]
    return sorted((word for word in words if word.num_tokens > 0), key=lambda word: word.num_tokens)


def _openings(
    texts: Sequence[str], count: int, shortest_prompt: int, tokenizer: Tokenizer, rng: random.Random
) -> list[str]:
    """The first words of each of `count` prompts of at least `shortest_prompt` tokens.

    All start with different tokens; if there are too few, with different words.
    """
    room = shortest_prompt - _count("", tokenizer)
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    first_words: dict[int, tuple[int, str]] = {}
    for text, one in zip(texts, encoded, strict=True):
        shortest, _ = first_words.get(one.ids[0], (room + 1, ""))
        if len(one.ids) < shortest:
            first_words[one.ids[0]] = (len(one.ids), text)
    words = [text for _, text in first_words.values()]
    if not words:
        raise BenchError(
            f"prompts of {shortest_prompt} tokens cannot be written with this tokenizer: "
            "no word is that short together with the special tokens"
        )
    if count <= len(words):
        return rng.sample(words, count)
    length = 2
    while len(words) ** length < 2 * count and length < shortest_prompt:
        length += 1
    if len(words) ** length < count:
        raise BenchError(f"num_requests: {count} prompts of {shortest_prompt} tokens cannot all differ")
    openings: dict[str, None] = {}
    while len(openings) < count:
        openings[" ".join(rng.choices(words, k=length))] = None
    return list(openings)


def _prompt(
    opening: str, wanted: int, words: Sequence[_Word], tokenizer: Tokenizer, rng: random.Random
) -> str:
    """A text of exactly `wanted` tokens that begins with `opening`."""
    added: list[str] = []
    for _ in range(_MAX_TRIES):
        text = " ".join([opening, *added])
        missing = wanted - _count(text, tokenizer)
        if missing == 0:
            return text
        more = _words_of(missing, words, rng)
        if more:
            added += more
        elif added:  # too long, or no word is short enough: remove some and draw again
            del added[-rng.randint(1, min(3, len(added))) :]
        else:
            break
    raise BenchError(
        f"prompts of {wanted} tokens cannot be written with this tokenizer; "
        f"{opening!r} alone takes {_count(opening, tokenizer)} of them, special tokens included"
    )


def _words_of(num_tokens: int, words: Sequence[_Word], rng: random.Random) -> list[str]:
    """Random words of about `num_tokens` tokens, never more; none if no word is that short."""
    found: list[str] = []
    usable = len(words)
    while num_tokens > 0:
        while usable and words[usable - 1].num_tokens > num_tokens:
            usable -= 1
        if not usable:
            break
        word = words[rng.randrange(usable)]
        found.append(word.text)
        num_tokens -= word.num_tokens
    return found
