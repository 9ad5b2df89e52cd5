"""Small tokenizers like those of older models, without tokenizer.json."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCES = [
    "hello world, the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs: 1234567890",
    "don't can't I'll you're; naïve café\n\n\tdef f(x): return x",
]

LLAMA_PIECES: dict[str, Any] = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}
"""Settings of sentencepiece for Llama's tokenizers."""


def save_gpt2(folder: Path, vocab_size: int = 400, *, as_json: bool = False) -> int:
    """Save vocab.json, merges.txt and tokenizer_config.json. `<|endoftext|>` is id 0. Return the number of entries.

    as_json: also save tokenizer.json, so nothing has to be converted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 5, trainer)
    tokenizer.model.save(str(folder))
    if as_json:
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(str(folder / "tokenizer.json"))
    named = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    config = {"tokenizer_class": "PreTrainedTokenizerFast" if as_json else "GPT2Tokenizer", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return int(tokenizer.get_vocab_size())


def sentencepiece_model(texts: list[str], kind: str, **settings: Any) -> bytes:
    """The content of a tokenizer.model. kind: `bpe` or `unigram`."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return model.getvalue()


def save_sentencepiece(folder: Path) -> None:
    """Save a tokenizer.model as early Llama models have it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = sentencepiece_model(SENTENCES * 20, "bpe", vocab_size=340, **LLAMA_PIECES)
    (folder / "tokenizer.model").write_bytes(model)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **named}))
