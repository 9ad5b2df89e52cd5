"""The byte-level tokenizer of models without one: every text round-trips, and every id has a text."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from container.models import byte_tokenizer, tokenizer_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.tokenizer import TextModel
from tests.support.paths import child_environment

SIZE = 1000
BOS, EOS, OTHER_EOS = 1, 70, 999
CONFIG = {"vocab_size": SIZE, "bos_token_id": BOS, "eos_token_id": [EOS, OTHER_EOS], "pad_token_id": None}
SPECIAL = {BOS, EOS, OTHER_EOS}


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def obtain(model: Path, cache: Path, log: io.StringIO | None = None) -> Path:
    view = LogLines(log or io.StringIO())
    return tokenizer_files.obtain(model, cache, child_environment(), view, "dummy")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    model = write_config(tmp_path_factory.mktemp("model"))
    return TextModel.from_folder(model, obtain(model, tmp_path_factory.mktemp("cache")))


@given(st.text())
@example("Ā ā Ġ <300> <| \x00\x7f\xad \r\n  日本 😀")
def test_a_text_becomes_one_token_per_byte_and_round_trips(text_model: TextModel, text: str) -> None:
    ids = text_model.encode(text)
    assert len(ids) == len(text.encode())
    assert text_model.decode(ids) == text
    assert not set(ids) & SPECIAL
    detokenizer = IncrementalDetokenizer(text_model)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == text


def test_bytes_take_the_first_free_ids(text_model: TextModel) -> None:
    assert text_model.encode("\x00") == (0,)
    assert text_model.encode("\x01\x02") == (2, 3)
    # Two special ids come before it.
    assert text_model.encode("z") == (ord("z") + 2,)
    assert text_model.encode("\U0010ffff") == tuple(byte + 2 for byte in b"\xf4\x8f\xbf\xbf")


def test_ids_that_are_not_bytes_are_shown_as_numbers(text_model: TextModel) -> None:
    assert text_model.decode([258, 300, 998]) == "<258><300><998>"
    assert text_model.token_text(512) == "<512>"
    assert text_model.decode([OTHER_EOS, 300, BOS]) == "<300>"
    assert text_model.decode([EOS], skip_special_tokens=False) == f"<|{EOS}|>"
    assert (text_model.vocabulary_size, set(text_model.eos_token_ids)) == (SIZE, {EOS, OTHER_EOS})
    assert set(text_model.special_ids) == SPECIAL


def test_models_with_the_same_vocabulary_share_a_tokenizer(tmp_path: Path) -> None:
    log = io.StringIO()
    first = obtain(write_config(tmp_path / "a"), tmp_path / "cache", log)
    assert obtain(write_config(tmp_path / "b", hidden_size=7), tmp_path / "cache", log) == first
    assert log.getvalue().count("creating a byte-level tokenizer for") == 1
    assert log.getvalue().count("has no tokenizer; using a byte-level tokenizer") == 2
    assert obtain(write_config(tmp_path / "c", vocab_size=SIZE + 1), tmp_path / "cache", log) != first
    generation = write_config(tmp_path / "d")
    (generation / "generation_config.json").write_text('{"eos_token_id": 5}')
    other = TextModel.from_folder(generation, obtain(generation, tmp_path / "cache", log))
    assert set(other.special_ids) == SPECIAL | {5}
    assert other.eos_token_ids == (5,)
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "config.json"]


def test_a_multimodal_model_has_the_vocabulary_of_its_text_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 300}}')
    assert byte_tokenizer.read_vocabulary(tmp_path) == byte_tokenizer.Vocabulary(300, ())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"vocab_size": 258, "bos_token_id": 1, "eos_token_id": [2, 3]}', "needs 259 to 2097152 entries"),
        ('{"vocab_size": 99999999}', "vocab_size is 99999999;"),
        ('{"vocab_size": "many"}', "has no vocab_size"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "a JSON object is expected"),
    ],
)
def test_a_vocabulary_without_room_for_bytes_is_rejected(config: str, words: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(config)
    refusal = tokenizer_files.refusal(model, "dummy")
    assert refusal is not None
    assert words in refusal
    with pytest.raises(ModelNotAvailable, match="has no tokenizer, and a byte-level one cannot be created"):
        obtain(model, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    model = write_config(tmp_path / "model")
    file = model / "generation_config.json"
    file.symlink_to("/proc/self/mem")  # a read error for every user, root too
    assert f"{file} cannot be read: " in (tokenizer_files.refusal(model, "dummy") or "")


def test_an_existing_tokenizer_is_kept_and_models_with_weights_require_one(tmp_path: Path) -> None:
    model = write_config(tmp_path / "model")
    assert "has no tokenizer; expected" in (tokenizer_files.refusal(model) or "")
    assert tokenizer_files.note(model, "auto") is None
    (model / "tokenizer.json").write_text("{}")
    assert obtain(model, tmp_path / "cache") == model
    assert tokenizer_files.note(model, "dummy") is None
