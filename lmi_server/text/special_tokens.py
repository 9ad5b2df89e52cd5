"""The special tokens that the files of a model name.

A token is a string, or an object with `content`. `config` is the object in tokenizer_config.json, and `tokens_map` the
one in special_tokens_map.json, which is empty if `config` has `added_tokens_decoder`, as in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]

_LISTS = ("additional_special_tokens", "extra_special_tokens")
_GPT2_DEFAULTS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")


def default_tokens(config: Fields, model_config: Fields) -> Mapping[str, str]:
    """Return the default tokens of the class of an unconverted tokenizer.

    Of the classes whose tokenizer.json is used unchanged, only GPT-2's has any.
    """
    named = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    if isinstance(named, str):
        return _GPT2_DEFAULTS if named.removesuffix("Fast") == "GPT2Tokenizer" else {}
    return _GPT2_DEFAULTS if model_config.get("model_type") == "gpt2" else {}


def named_tokens(config: Fields, tokens_map: Fields, defaults: Fields) -> dict[str, str]:
    """Return the tokens named like `bos_token`. As in transformers, `tokens_map` overrides `config`.

    `defaults` apply to names that the other sources do not contain: null there means that there is no such token.
    """
    found = {name: _content(value) for name, value in {**defaults, **config, **tokens_map}.items()}
    return {name: text for name, text in found.items() if name.endswith("_token") and isinstance(text, str)}


def unnamed_tokens(config: Fields, tokens_map: Fields) -> list[str]:
    """Return the tokens in lists such as `additional_special_tokens`, or in objects in their place."""
    texts: list[str] = []
    for source in (config, tokens_map):
        for name in _LISTS:
            values = source.get(name)
            texts += _texts(list(values.values()) if isinstance(values, dict) else values)
    return texts


def additional_tokens(config: Fields, tokens_map: Fields) -> list[str]:
    """Return the list that templates know as `additional_special_tokens`. The first source wins."""
    lists = (_texts(source.get(name)) for source in (config, tokens_map) for name in _LISTS)
    return next(filter(None, lists), [])


def _texts(values: Any) -> list[str]:
    found = map(_content, values) if isinstance(values, list) else ()
    return [text for text in found if isinstance(text, str)]


def _content(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value
