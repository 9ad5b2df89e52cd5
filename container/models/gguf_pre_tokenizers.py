"""How byte-level tokenizers normalize texts and split them into words, by the value of `tokenizer.ggml.pre`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

_GPT2 = frozenset({"a.x-4.0", "gpt-2", "mellum", "trillion"})
"""Pre-tokenizers with GPT-2's pattern, as in llama.cpp."""
_SINGLE_DIGITS = frozenset({"exaone", "minerva-7b", "refact", "smollm", "starcoder"})
"""Pre-tokenizers that split off each digit and then use GPT-2's pattern, as in llama.cpp."""
_EACH_DIGIT = None
"""A step that splits off each digit."""
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters of scripts with upper and lower case, as listed in DeepSeek's tokenizer.json."""
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_STEPS: Mapping[str, tuple[str | None, ...]] = {
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _EACH_DIGIT),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EAST_ASIAN,
        _EACH_DIGIT,
    ),
    "minicpm5": (
        r"\p{N}{1,3}",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
    "seed-coder": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
}
"""Steps that isolate the matches of a pattern, one after the other, as in the models' tokenizer.json."""
_NFC = frozenset({"deepseek-r1-qwen", "qwen2", "qwen35", "seed-coder"})
_NFKC = frozenset({"exaone"})
BEGIN_WITH_BOS = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
"""Pre-tokenizers of models that begin texts with BOS, as in llama.cpp, unless the metadata says that they do not."""
IGNORE_MERGES = BEGIN_WITH_BOS | {"falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "midm-2.0", "pixtral"}
"""Pre-tokenizers of models for which a word in the vocabulary is one token, whatever the merges, as in llama.cpp."""


def splitter(pre: str | None) -> Any:
    """Return the part of a tokenizer that splits texts into words; None if `pre` is not in `supported()`."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _GPT2:
        return gpt2
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([_isolate(_EACH_DIGIT), gpt2])
    if (steps := _all_steps().get(str(pre))) is None:
        return None
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*map(_isolate, steps), bytes_])


def normalizer(pre: str | None) -> Any:
    """Return the normalizer of the models' tokenizer.json, or None. llama.cpp does not normalize texts."""
    if pre in _NFC:
        return normalizers.NFC()
    return normalizers.NFKC() if pre in _NFKC else None


def supported() -> list[str]:
    """Return the supported values of `tokenizer.ggml.pre`, sorted."""
    return sorted({*_GPT2, *_SINGLE_DIGITS, *_all_steps()})


def _all_steps() -> Mapping[str, tuple[str | None, ...]]:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (  # takes seconds
        GGUF_PRE_TOKENIZER_SPLITS,
    )

    return {**{pre: (pattern,) for pre, pattern in GGUF_PRE_TOKENIZER_SPLITS.items()}, **_STEPS}


def _isolate(step: str | None) -> Any:
    if step is _EACH_DIGIT:
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(step), "isolated")
