"""Incremental detokenization, compared with decoding all tokens at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.tokenizer import TextModel


@pytest.fixture(scope="module")
def sentencepiece_like() -> TextModel:
    """A tokenizer like that of Llama 2: words with a leading mark for a space, and bytes for everything else."""
    words = ["<s>", "▁", "▁one", "▁two", "one", "two", ".", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<s>"])
    return TextModel(tokenizer, (), {"<s>": 0}, frozenset({0}), None, 6, len(tokenizer.get_vocab()))


def stream(text: TextModel, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = IncrementalDetokenizer(text, prompt or [])
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_folder)


@given(st.text(), st.lists(st.integers(0, 349), max_size=60))
def test_incremental_text_equals_transformers_at_once(
    text_model: TextModel, reference: Any, text: str, extra_ids: list[int]
) -> None:
    """The arbitrary tokens after the text may be special tokens, and may not form valid UTF-8."""
    ids = [*text_model.encode(text), *extra_ids]
    whole = reference.decode(ids, skip_special_tokens=True)
    assert "".join(stream(text_model, ids)) == text_model.decode(ids) == whole


@given(st.text(min_size=1))
def test_text_round_trips_without_replacement_characters(text_model: TextModel, text: str) -> None:
    pieces = stream(text_model, list(text_model.encode(text)))
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_continuation_starts_where_the_prompt_ends(text_model: TextModel, prompt: str, text: str) -> None:
    prompt_ids, ids = list(text_model.encode(prompt)), list(text_model.encode(text))
    assert "".join(stream(text_model, ids, prompt_ids)) == text


def token_id(text: TextModel, piece: str) -> int:
    number = text.tokenizer.token_to_id(piece)
    assert number is not None
    return number


def test_a_character_is_returned_with_its_last_token(text_model: TextModel) -> None:
    ids = [token_id(text_model, piece) for piece in ("ð", "Ł", "ĺ", "Ģ")]
    assert stream(text_model, ids) == ["", "", "", "😀", ""]


def test_a_run_of_bytes_that_are_no_character_is_returned(text_model: TextModel) -> None:
    detokenizer = IncrementalDetokenizer(text_model)
    shown, lone = "", token_id(text_model, "Ģ")
    for number in range(1, 501):
        shown += detokenizer.push(lone)
        assert number - len(shown) < 64
        assert len(detokenizer._window) < 128
    assert shown + detokenizer.flush() == "\ufffd" * 500


@given(st.integers(25, 45), st.text(min_size=1), st.sampled_from(["Ģ", "ð", "ðŁĺ"]))
def test_characters_after_a_run_of_invalid_bytes(
    text_model: TextModel, size: int, text: str, invalid: str
) -> None:
    ids = [*(token_id(text_model, piece) for piece in invalid)] * size
    for byte_ids in (ids, ids[:-1], ids[1:]):
        whole = [*byte_ids, *text_model.encode("\ufffd" * size + text), *byte_ids]
        assert "".join(stream(text_model, whole)) == text_model.decode(whole)


@pytest.fixture(scope="module")
def mixed() -> TextModel:
    """A byte-level tokenizer with tokens of whole characters and the start, the middle or the end of others."""
    words = ["a", "ð", "Ł", "ĺ", "Ģ", "aðŁ", "aaðŁĺ", "ĺĢað", "ŁĺĢ", "Ģa"]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return TextModel(tokenizer, (), {}, frozenset(), None, 5, len(words))


@given(st.lists(st.integers(0, 10), max_size=60))
def test_tokens_of_whole_and_partial_characters(mixed: TextModel, ids: list[int]) -> None:
    """The tokenizer does not have the last token."""
    assert "".join(stream(mixed, ids)) == mixed.decode(ids)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_the_window_stays_short_whatever_is_repeated(mixed: TextModel, ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(mixed)
    shown = ""
    for token in ids * (400 // len(ids)):
        shown += detokenizer.push(token)
        assert len(detokenizer._window) < 256
    assert shown + detokenizer.flush() == mixed.decode(ids * (400 // len(ids)))


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("silent_id", [1000, 0], ids=["unknown", "special"])
def test_tokens_without_text_do_not_lengthen_the_window(
    sentencepiece_like: TextModel, silent_id: int, skip_special_tokens: bool
) -> None:
    """The model's vocabulary may be larger than the tokenizer's."""
    ids = [*[silent_id] * 200, token_id(sentencepiece_like, "▁two")]
    detokenizer = IncrementalDetokenizer(
        sentencepiece_like, [token_id(sentencepiece_like, "▁one")], skip_special_tokens
    )
    shown = ""
    for token in ids:
        shown += detokenizer.push(token)
        assert len(detokenizer._window) < 16
    name = "" if skip_special_tokens or silent_id else "<s>"
    assert shown + detokenizer.flush() == name * 200 + " two"


def test_a_run_of_invalid_bytes_with_sentencepiece(sentencepiece_like: TextModel) -> None:
    ids = [*[token_id(sentencepiece_like, "<0x80>")] * 100, token_id(sentencepiece_like, "▁one")]
    pieces = stream(sentencepiece_like, ids)
    assert "".join(pieces) == sentencepiece_like.decode(ids) == "\ufffd" * 100 + " one"
    assert 0 < len(pieces[-2]) < 64


UNKNOWN = "a token that only the model has"
WORDS = st.lists(st.sampled_from(["▁", "▁one", "▁two", "one", "two", ".", "<s>", UNKNOWN]), max_size=12)


@given(WORDS, st.text(alphabet="é你😀", max_size=4), WORDS)
def test_incremental_text_equals_decoding_at_once_with_sentencepiece(
    sentencepiece_like: TextModel, before: list[str], foreign: str, after: list[str]
) -> None:
    middle = [f"<0x{byte:02X}>" for byte in foreign.encode()]
    pieces = [*before, *middle, *after]
    ids = [1000 if piece == UNKNOWN else token_id(sentencepiece_like, piece) for piece in pieces]
    assert "".join(stream(sentencepiece_like, ids)) == sentencepiece_like.decode(ids)


def test_space_between_prompt_and_continuation_is_kept(sentencepiece_like: TextModel) -> None:
    one, two = (token_id(sentencepiece_like, piece) for piece in ("▁one", "▁two"))
    assert "".join(stream(sentencepiece_like, [two], [one])) == " two"
    assert "".join(stream(sentencepiece_like, [two])) == "two"


@pytest.mark.parametrize("prompt", ["😀😀", "é😀你😀", "one😀😀😀"])
def test_characters_after_a_prompt_that_ends_in_byte_tokens(
    sentencepiece_like: TextModel, prompt: str
) -> None:
    output = "😀é😃"
    before, after = (
        [token_id(sentencepiece_like, f"<0x{byte:02X}>") for byte in text.encode()]
        for text in (prompt, output)
    )
    assert "".join(stream(sentencepiece_like, after, before)) == output
