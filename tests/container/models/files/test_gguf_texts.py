"""Tokenizers, chat templates and ends of generation from the metadata of GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer

from container.models import tokenizer_files
from container.models.gguf_config import UnknownGguf
from container.models.gguf_describe import describe, write_texts
from lmi_server.text.template_files import read_templates
from tests.support.gguf_models import SHAPE, write_gguf
from tests.support.script_texts import script_texts
from tests.support.tiny_models import save_model
from tests.support.tokenizer_families import FAMILIES


@pytest.mark.parametrize(
    ("family", "pre"),
    [
        *(("llama3", "llama-bpe"), ("qwen2", "qwen2"), ("qwen3", "qwen2"), ("gpt2", "gpt-2")),
        *((family, "") for family in ("mistral", "mistral_v3", "llama2", "phi3", "gemma2")),
    ],
)
def test_the_tokenizer_is_built_from_the_metadata(family: str, pre: str, tmp_path: Path) -> None:
    """Texts with leading spaces are important for SentencePiece."""
    described = _described(tmp_path, family, pre)
    theirs = Tokenizer.from_file(str(tmp_path / family / "tokenizer.json"))
    ours = Tokenizer.from_file(str(described / "tokenizer.json"))
    chat = "<|user|>\nYou\n  a<|end|>\n<|assistant|>\n"
    defaults = "<|endoftext|> <unk> <s> <mask>"  # of transformers' classes; some models do not have them
    texts = (*script_texts(100, ["<|eot_id|>", "<s>", "[INST]"]), chat, defaults)
    for text in (*texts, " a", "  a", "▁a", "", " "):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == expected
        if pre:
            assert ours.encode(text).ids == theirs.encode(text).ids, "BOS"
        assert pre or ours.decode(expected) == theirs.decode(expected)
    assert read_templates(described) == {"default": "{{ messages }}"}
    assert tokenizer_files.loads_unchanged(described)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((described / name).read_text())["pad_token_id"] is None


def test_special_tokens_may_be_spelled_outside_the_byte_alphabet(tmp_path: Path) -> None:
    """As in distilled models of DeepSeek-R1."""
    FAMILIES["llama3"](tmp_path / "llama3")
    file = tmp_path / "llama3" / "tokenizer.json"
    text = file.read_text().replace("<|begin_of_text|>", "<｜begin▁of▁sentence｜>")
    file.write_text(text.replace("<|start_header_id|>", "<｜User｜>"))
    _check_ids(tmp_path, "llama3", "llama-bpe", "<｜User｜>You<｜begin▁of▁sentence｜>")


def test_a_word_of_llama3s_vocabulary_is_one_token_even_if_no_merge_makes_it(tmp_path: Path) -> None:
    FAMILIES["llama3"](tmp_path / "llama3")
    file = tmp_path / "llama3" / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"]["Ġxyzzy"] = len(data["model"]["vocab"]) + len(data["added_tokens"])
    file.write_text(json.dumps(data))
    _check_ids(tmp_path, "llama3", "llama-bpe", "a xyzzy")


@pytest.mark.parametrize("pre", ["smollm", "refact"])
def test_digits_are_tokens_of_their_own_as_in_granite_code(pre: str, tmp_path: Path) -> None:
    FAMILIES["gpt2"](tmp_path / "gpt2")
    file = tmp_path / "gpt2" / "tokenizer.json"
    data = json.loads(file.read_text())
    steps = [{"type": "Digits", "individual_digits": True}, data["pre_tokenizer"]]
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    file.write_text(json.dumps(data))
    _check_ids(tmp_path, "gpt2", pre, "a 1234567890 b")


def _check_ids(folder: Path, family: str, pre: str, text: str) -> None:
    """Check the ids of a GGUF file's tokenizer against the family's in `folder`, and the number of tokens."""
    ours = Tokenizer.from_file(str(_described(folder, family, pre) / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(folder / family / "tokenizer.json"))
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.get_vocab_size() == theirs.get_vocab_size()


@pytest.mark.parametrize("turn", ["<|im_end|>", "<|eot_id|>"])
@pytest.mark.parametrize("text", ["<|endoftext|>", "</s>", "<eos>", "[EOS]"])
def test_generation_ends_with_a_text_even_if_the_metadata_name_a_turn(
    turn: str, text: str, tmp_path: Path
) -> None:
    fields = {"tokens": ["a", text, turn, "b"], "token_type": [1, 3, 3, 1], "eos_token_id": 2}
    metadata: Any = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    write_texts(tmp_path / "model.gguf", metadata, tmp_path, with_tokenizer=False)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [1, 2]


@pytest.mark.parametrize(("family", "pre"), [("llama3", "llama-bpe"), ("phi3", ""), ("gemma3", "")])
def test_generation_ends_with_a_turn(family: str, pre: str, tmp_path: Path) -> None:
    """The metadata have no end of a turn, as in many files."""
    described = _described(tmp_path, family, pre)
    ends = json.loads((described / "generation_config.json").read_text())["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(tmp_path / family / "tokenizer.json"))
    turns = ("<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
    names = (*turns, "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")
    known = {tokenizer.token_to_id(token) for token in names}
    assert set(ends) == {1, *known} - {None}, "1 is the end of texts"


def test_sentencepiece_without_a_space_prefix(tmp_path: Path) -> None:
    """`tokenizer.ggml.add_space_prefix` is false."""
    FAMILIES["llama2"](tmp_path / "llama2")
    file = tmp_path / "llama2" / "tokenizer.json"
    data = json.loads(file.read_text())
    data["normalizer"] = data["normalizer"]["normalizers"][1]
    file.write_text(json.dumps(data))
    ours = Tokenizer.from_file(str(_described(tmp_path, "llama2", "") / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(file))
    for text in ("a b", " a", "  a"):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == ids
        assert ours.decode(ids) == text


def test_an_unknown_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownGguf,
        match=r"'gpt2' with pre-tokenizer 'unheard-of'.* put the model's tokenizer.json next to .*model.gguf",
    ):
        _described(tmp_path, "llama3", "unheard-of")


def _described(folder: Path, family: str, pre: str) -> Path:
    """Describe a GGUF file with the tokenizer of a family. The tokenizer is created in `folder` if missing."""
    tokenizer, checkpoint, described = (folder / name for name in (family, "checkpoint", "described"))
    if not tokenizer.exists():
        FAMILIES[family](tokenizer)
    architecture = {"phi3": "phi3", "gemma2": "gemma", "gemma3": "gemma3"}.get(family, "llama")
    save_model(checkpoint, {"gemma3": "gemma3_text"}.get(family, architecture), **SHAPE)
    described.mkdir()
    write_gguf(checkpoint, folder / "model.gguf", architecture, Kind.F32, tokenizer, pre)
    describe(folder / "model.gguf", described)
    return described
