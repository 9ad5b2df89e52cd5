"""Helpers for the families: trained tokenizers of a few hundred tokens, and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.support.script_texts import WORDS
from tests.support.tokenizers import SENTENCES, sentencepiece_model

CORPUS = [
    *SENTENCES,
    " ".join(WORDS),
    "  def main():\n        return  1\n\n",
    "INST user assistant system",
] * 4
NUM_TOKENS = 600


def special(*texts: str, **more: Any) -> list[AddedToken]:
    return [AddedToken(text, normalized=False, special=True, **more) for text in texts]


def byte_level(
    added: list[AddedToken],
    pattern: str | None = None,
    *,
    first: Any = None,
    normalizer: Any = None,
    ignore_merges: bool = False,
) -> Tokenizer:
    """A byte-level BPE. `pattern`: defaults to that of GPT-2."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None and first is None)
    if first is None and pattern is not None:
        first = [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = bytes_ if first is None else pre_tokenizers.Sequence([*first, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    for token in added:  # one by one, since the library would sort them by kind
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def pieces(added: list[AddedToken], *, gemma: bool = False) -> Tokenizer:
    """A sentencepiece-like BPE with byte fallback, as in the tokenizer.json of Llama 2 or Gemma."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"] if gemma else ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # noqa: S106
    replace = normalizers.Replace(" ", "▁")
    if gemma:
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        special_tokens=[*special(*names), *(AddedToken(f"<0x{byte:02X}>") for byte in range(256))],
        show_progress=False,
        max_token_length=8,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in names]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps if gemma else [*steps, decoders.Strip(" ", 1, 0)])
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return begin(tokenizer, "<bos>" if gemma else "<s>")


def begin(tokenizer: Tokenizer, bos: str, *, keep: Any = None) -> Tokenizer:
    """Make the tokenizer add `bos` before a text."""
    number = tokenizer.token_to_id(bos)
    template = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, number)]
    )
    tokenizer.post_processor = template if keep is None else processors.Sequence([keep, template])
    return tokenizer


def added_tokens_decoder(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """The added tokens, in the format of tokenizer_config.json."""
    names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        str(number): {name: getattr(token, name) for name in names}
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }


def as_object(text: str) -> dict[str, Any]:
    """A token, in the format of special_tokens_map.json."""
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def as_objects(tokens: Mapping[str, str], **more: Any) -> dict[str, dict[str, Any]]:
    """Named tokens, in the format of special_tokens_map.json. more: further keys of each."""
    return {name: as_object(text) | more for name, text in tokens.items()}


def write(folder: Path, name: str, data: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")


def save(
    folder: Path,
    tokenizer: Tokenizer | None,
    model_type: str,
    tokenizer_config: Mapping[str, Any] | None = None,
    special_tokens_map: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    eos: Any = None,
) -> None:
    write(folder, "config.json", {"model_type": model_type, "eos_token_id": eos})
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    for name, data in (
        ("tokenizer_config.json", tokenizer_config),
        ("special_tokens_map.json", special_tokens_map),
        ("generation_config.json", generation_config),
    ):
        if data is not None:
            write(folder, name, data)


def save_pieces(folder: Path, kind: str, model_type: str, config: dict[str, Any], **settings: Any) -> None:
    """Save a folder with a sentencepiece model as its only tokenizer."""
    save(folder, None, model_type, config)
    name = "spiece.model" if model_type == "t5" else "tokenizer.model"
    (folder / name).write_bytes(sentencepiece_model(CORPUS, kind, **settings))
