"""The model's text side as the web process needs it: tokenizer, special tokens, EOS ids, chat template.

Reads the files of a model folder with the `tokenizers` library; never imports transformers or torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lmi_server.text.chat_template import ChatTemplate

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TextModel:
    """Text to token ids and back. Stateless: all requests share one."""

    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    """Generation ends with any of these."""
    special_tokens: Mapping[str, int]
    """Ids, by text, of the tokens that never show in a decoded text."""
    special_ids: frozenset[int]
    chat_template: ChatTemplate | None
    longest_token: int
    """Characters of the longest entry of the vocabulary."""
    vocabulary_size: int
    """Token ids go from 0 to one below this."""
    is_encoder_decoder: bool = False
    """The output is a separate text, and its length does not count the prompt."""

    @classmethod
    def from_folder(cls, folder: Path, tokenizer_folder: Path | None = None) -> TextModel:
        """Read a model folder, and tokenizer.json from `tokenizer_folder` where it is given.

        Raises:
            FileNotFoundError: the folder has no tokenizer.json.
            ValueError: a file is not valid; the text names it.
        """
        tokenizer = _read_tokenizer((tokenizer_folder or folder) / "tokenizer.json")
        config = read_json(folder / "tokenizer_config.json")
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        named = _named_tokens(config, read_json(folder / "special_tokens_map.json"))
        return cls(
            tokenizer=tokenizer,
            eos_token_ids=_eos_token_ids(folder, tokenizer, named),
            special_tokens=special,
            special_ids=frozenset(special.values()),
            chat_template=_chat_template(folder, config, named),
            longest_token=max(map(len, vocabulary), default=1),
            vocabulary_size=_vocabulary_size(folder, vocabulary),
            is_encoder_decoder=read_json(folder / "config.json").get("is_encoder_decoder") is True,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text. `add_special_tokens`: with those that the model adds to a plain text."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, by default without special tokens; an incomplete character shows as U+FFFD."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token within a text; a special token shows as its name."""
        # The second of two, because some tokenizers drop a space at the start of a text.
        first = self.decode([token_id], skip_special_tokens=False)
        return self.decode([token_id, token_id], skip_special_tokens=False)[len(first) :]


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; the model folder needs a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"{path}: not a tokenizer: {error}") from error
    # Some files keep the settings of the training run; prompts are neither truncated nor padded here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty when there is no such file. Raises `ValueError`, which names the file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: a JSON object is expected")
    return data


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token` and the like; a token is written as a string or as an object with `content`."""
    named: dict[str, str] = {}
    for source in sources:
        for name in _TOKEN_NAMES:
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                named.setdefault(name, value)
    return named


def _eos_token_ids(folder: Path, tokenizer: Tokenizer, named: Mapping[str, str]) -> tuple[int, ...]:
    """Read the first of generation_config.json, config.json and the tokenizer's `eos_token` that names any."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if ids and all(isinstance(one, int) for one in ids):
            return tuple(ids)
    number = tokenizer.token_to_id(named["eos_token"]) if "eos_token" in named else None
    return () if number is None else (number,)


def _vocabulary_size(folder: Path, vocabulary: Mapping[str, int]) -> int:
    """Return the size that both know: the tokenizer, which may lack entries of the model, and config.json."""
    size = max(vocabulary.values(), default=-1) + 1
    config = read_json(folder / "config.json")
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        if isinstance(part.get("vocab_size"), int):
            size = min(size, part["vocab_size"])
    return size


def _chat_template(folder: Path, config: Mapping[str, Any], named: Mapping[str, str]) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):
        templates = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = templates.get("default")
    return ChatTemplate(source, named) if isinstance(source, str) else None
