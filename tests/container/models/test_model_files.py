"""Model sources."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from container.models import files as model_files
from container.models.files import ModelNotAvailable, bundled
from container.progress import LogLines
from lmi_server.config import ModelSource


@pytest.fixture
def view() -> LogLines:
    return LogLines(io.StringIO())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("written", ["{model}", "models/mine", "./models/mine"])
def test_a_local_folder_is_absolute_or_relative_to_the_properties(
    written: str, model: Path, tmp_path: Path, view: LogLines
) -> None:
    source = ModelSource(model_id=written.format(model=model), model_dir=str(tmp_path))
    assert model_files.locate(source) == model
    assert model_files.obtain(source, view) == model
    assert model_files.refusal(source) is None


def test_without_model_id_the_properties_folder_is_the_model(model: Path, view: LogLines) -> None:
    assert model_files.obtain(ModelSource(model_dir=str(model)), view) == model


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("/not/there", "does not exist"),
        ("./not-there", "does not exist"),
        (None, "config.json; set option.model_id"),
        ("https://host/model", "'https://' is not supported"),
        ("models/falcon/40b", "this looks like a path, but there is no folder"),
    ],
)
def test_an_unavailable_model_is_rejected_with_a_one_line_error(
    model_id: str | None, words: str, tmp_path: Path, view: LogLines
) -> None:
    source = ModelSource(model_id=model_id, model_dir=str(tmp_path))
    assert model_files.locate(source) is None
    with pytest.raises(ModelNotAvailable) as caught:
        model_files.obtain(source, view)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_not_a_model_folder(model: Path, view: LogLines) -> None:
    with pytest.raises(ModelNotAvailable, match="is a file"):
        model_files.obtain(ModelSource(model_id=str(model / "config.json")), view)


def test_the_bundled_model_is_located_only_when_it_is_complete(tmp_path: Path) -> None:
    source = ModelSource(model_id=bundled.BUNDLED_MODEL)
    target = bundled.bundled_folder(tmp_path)
    assert model_files.locate(source, tmp_path) is None
    (target.parent / f".{target.name}.part-x").mkdir(parents=True)
    assert model_files.locate(source, tmp_path) is None
    target.mkdir()
    assert model_files.locate(source, tmp_path) == target
