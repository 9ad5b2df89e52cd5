"""The text side of a model for the web process: tokenizer, special tokens, EOS ids, chat template.

Reads the files of a model folder with the `tokenizers` library; never imports transformers or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engines.git_lfs import pointer_problem
from lmi_server.text.chat_template import ChatTemplate
from lmi_server.text.clean_up import cleaned_up
from lmi_server.text.json_file import read_json
from lmi_server.text.special_tokens import additional_tokens, default_tokens, named_tokens, unnamed_tokens
from lmi_server.text.template_files import DEFAULT, read_templates


@dataclass(frozen=True, slots=True)
class TextModel:
    """Converts text to token ids and back. Shared by all requests. Caches the texts of single tokens."""

    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    """Generation ends with any of these."""
    special_tokens: Mapping[str, int]
    """Ids, by text, of the special tokens, which decoded text omits by default."""
    special_ids: frozenset[int]
    chat_template: ChatTemplate | None
    """The default chat template."""
    max_token_chars: int
    """Length of the longest entry of the vocabulary, in characters."""
    vocabulary_size: int
    """Token ids range from 0 to `vocabulary_size - 1`."""
    template_names: tuple[str, ...] = ()
    """Names of all chat templates, of which only the default one is used."""
    is_encoder_decoder: bool = False
    """Whether the output is a separate text whose length does not include the prompt."""
    cleans_up_spaces: bool = False
    """Whether spaces before punctuation are removed from decoded text (`clean_up_tokenization_spaces`)."""
    _token_texts: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cached results of `token_text`, by token id."""

    @classmethod
    def from_folder(cls, folder: Path, tokenizer_folder: Path | None = None) -> TextModel:
        """Read a model folder.

        `tokenizer_folder`: if given, tokenizer.json is read from there, and so are the default tokens of the
        tokenizer's class (special_tokens_map.json).

        Raises:
            FileNotFoundError: the folder has no tokenizer.json.
            ValueError: a file is not valid; the message names the file.
        """
        tokenizer = read_tokenizer((tokenizer_folder or folder) / "tokenizer.json")
        config_file = folder / "tokenizer_config.json"
        model_config = read_json(folder / "config.json")
        config = read_json(config_file)
        tokens_map = {} if "added_tokens_decoder" in config else read_json(folder / "special_tokens_map.json")
        converted = read_json(tokenizer_folder / "special_tokens_map.json") if tokenizer_folder else {}
        named = named_tokens(config, tokens_map, {**default_tokens(config, model_config), **converted})
        declared = _declared_tokens(config_file, config, named)
        _add_tokens(tokenizer, declared, [*named.values(), *unnamed_tokens(config, tokens_map)])
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        templates = read_templates(folder)
        additional = additional_tokens(config, tokens_map)
        return cls(
            tokenizer=tokenizer,
            eos_token_ids=_eos_token_ids(folder, tokenizer, named),
            special_tokens=special,
            special_ids=frozenset(special.values()),
            chat_template=_chat_template(folder, templates, named, additional),
            template_names=tuple(templates),
            max_token_chars=max(map(len, vocabulary), default=1),
            vocabulary_size=_vocabulary_size(model_config, vocabulary),
            is_encoder_decoder=model_config.get("is_encoder_decoder") is True,
            # As in transformers, not for BPE, where this would remove spaces that the model generated.
            cleans_up_spaces=config.get("clean_up_tokenization_spaces") is True
            and type(tokenizer.model).__name__ != "BPE",
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text. `add_special_tokens`: add the ones that the model adds to a plain text."""
        # Unlike `encode`, this releases the GIL. It computes no offsets, which nobody needs.
        [encoding] = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, by default without special tokens. An incomplete character becomes U+FFFD."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return cleaned_up(text) if self.cleans_up_spaces else text

    def token_text(self, token_id: int) -> str:
        """Return the text of one token within a longer text. A special token is returned as its name."""
        text = self._token_texts.get(token_id)
        if text is None:
            # Decode the token twice and keep the second text: some tokenizers drop a space at the start of a text.
            first = self.decode([token_id], skip_special_tokens=False)
            text = self.decode([token_id, token_id], skip_special_tokens=False)[len(first) :]
            self._token_texts[token_id] = text
        return text


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json, without its truncation and padding. Raises FileNotFoundError, ValueError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; the model folder needs a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(pointer_problem(path) or f"{path}: not a tokenizer: {error}") from error
    # Some files keep the truncation and padding of the training run. Prompts are neither truncated nor padded here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _chat_template(
    folder: Path, templates: Mapping[str, str], named: Mapping[str, str], additional: Sequence[str]
) -> ChatTemplate | None:
    """Compile the default template; None without one. Raises `ValueError`, which names the folder."""
    if DEFAULT not in templates:
        return None
    try:
        return ChatTemplate(templates[DEFAULT], named, additional)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _declared_tokens(path: Path, config: Mapping[str, Any], named: Mapping[str, str]) -> list[AddedToken]:
    """Return the tokens of `added_tokens_decoder` in the order of their ids. Raises `ValueError`, which names the file.

    As in transformers, named tokens are special.
    """
    tokens: list[AddedToken] = []
    try:
        entries = (config.get("added_tokens_decoder") or {}).items()
        for _, fields in sorted(entries, key=lambda entry: int(entry[0])):
            tokens.append(token := AddedToken(**fields))
            token.special = token.special or token.content in named.values()
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: added_tokens_decoder: {error}") from error
    return tokens


def _add_tokens(tokenizer: Tokenizer, declared: Sequence[AddedToken], special: Sequence[str]) -> None:
    """Add the tokens that tokenizer.json does not list, or not as special, as transformers does.

    special: texts that become special if they are in the vocabulary but neither listed nor declared.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    listed = {token.content for token in added}
    listed_special = {token.content for token in added if token.special}
    tokenizer.add_tokens(
        [one for one in declared if one.content not in (listed_special if one.special else listed)]
    )
    known = listed | {token.content for token in declared}
    unlisted = [text for text in special if text not in known and tokenizer.token_to_id(text) is not None]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in unlisted])


def _eos_token_ids(folder: Path, tokenizer: Tokenizer, named: Mapping[str, str]) -> tuple[int, ...]:
    """Return the EOS ids of generation_config.json or else config.json, and the tokenizer's `eos_token`, as vLLM does.

    transformers omits the tokenizer's, so it generates past the end of a chat turn if a model's config.json has only
    the end-of-text token.
    """
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        if found := [one for one in values if type(one) is int]:
            break
    number = tokenizer.token_to_id(named["eos_token"]) if "eos_token" in named else None
    return tuple(dict.fromkeys(found if number is None else [*found, number]))


def _vocabulary_size(config: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int:
    """Return config.json's `vocab_size`, the number of token ids that the model knows, else the tokenizer's size."""
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        if isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return max(vocabulary.values(), default=-1) + 1
