"""Tokenizers of other kinds: Unigram, WordLevel, WordPiece."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.support.tokenizer_families.parts import CORPUS, save, save_pieces, special


def _save(folder: Path, tokenizer: Tokenizer, unk: str, eos: str) -> None:
    config = {"unk_token": unk, "eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast"}
    save(folder, tokenizer, "llama", {**config, "clean_up_tokenization_spaces": True})


def t5(folder: Path) -> None:
    """Unigram. Texts end with `</s>`, and decoding cleans up spaces."""
    config = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 5}
    config |= {"tokenizer_class": "T5Tokenizer", "clean_up_tokenization_spaces": True}
    save_pieces(folder, "unigram", "t5", config, vocab_size=400, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def word_level(folder: Path) -> None:
    """tokenizer.json does not list the special tokens."""
    words = ["<unk>", "</s>", *dict.fromkeys(" ".join(CORPUS).split())]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    _save(folder, tokenizer, "<unk>", "</s>")


def word_piece(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(
        special_tokens=special("[UNK]", "[CLS]", "[SEP]"), vocab_size=500, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _save(folder, tokenizer, "[UNK]", "[SEP]")


def unigram(folder: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=special("<unk>", "</s>"),
        show_progress=False,
        unk_token="<unk>",  # noqa: S106
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _save(folder, tokenizer, "<unk>", "</s>")
