"""Local model folders: problems are reported before anything starts, and the folders are never modified."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from container.explain.check import check
from container.explain.resolve import CannotServe, resolve
from container.explain.target import this_machine
from container.machine import Machine
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.bundled import BUNDLED_MODEL
from container.models.files.folder import weights_problem
from container.models.files.s3.manifest import MANIFEST
from container.progress import LogLines
from lmi_server.config import EngineOptions, LmiConfig, ModelSource
from tests.container.explain.questions import SHAPE
from tests.support.model_files import LFS_POINTER, content, weights

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
TWO = f'{{"weight_map": {{"a": "{FIRST}", "b": "{SECOND}"}}}}'.encode()
MACHINE = Machine(cpu_count=2, memory_available_bytes=8 << 30)
BYTES = weights(size_bytes=4096)


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {"config.json": json.dumps(SHAPE).encode(), **files}.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {"model.safetensors": BYTES},
        {INDEX: TWO, FIRST: BYTES, SECOND: BYTES},
        {"model.safetensors": BYTES, "pytorch_model.bin": b"pickle", "train.txt": b"text"},
    ],
)
def test_complete_weights_are_accepted(files: Mapping[str, bytes], tmp_path: Path) -> None:
    assert weights_problem(write(tmp_path / "model", files)) is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({INDEX: TWO, FIRST: BYTES}, f"lists 2 weight files, but 1 of them are missing: {SECOND}"),
        ({INDEX: b"{", FIRST: BYTES, SECOND: BYTES}, "is not JSON"),
        ({INDEX: TWO, FIRST: BYTES, SECOND: BYTES[:-1]}, f"{SECOND} is not a complete safetensors file"),
        ({"model.safetensors": b""}, "model.safetensors is not a complete safetensors file"),
        (
            {"model.safetensors": LFS_POINTER},
            "model.safetensors is a Git LFS pointer, not the file itself; run git lfs pull in the model's folder",
        ),
        ({"pytorch_model.bin": b"pickle"}, "no .safetensors file, only pytorch_model.bin"),
        ({}, "no .safetensors file; found: config.json"),
    ],
)
@pytest.mark.parametrize("engine", ["MPI", "Python"])
def test_missing_or_damaged_weights_are_reported_at_startup_and_by_check(
    engine: str, files: Mapping[str, bytes], words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", files)
    config = LmiConfig(engine, ModelSource(str(folder)), EngineOptions(tensor_parallel_degree=1))
    with pytest.raises(CannotServe) as caught:
        resolve(config, folder, MACHINE)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    text = f"engine={engine}\noption.model_id=model\noption.tensor_parallel_degree=1\n"
    (tmp_path / "serving.properties").write_text(text)
    last = check(tmp_path, {}, this_machine(MACHINE)).render().splitlines()[-1]
    assert last == f"can serve here: no: {caught.value}"


@pytest.mark.parametrize("written", ["{folder}", "models/mine", "./models/mine", None])
def test_a_folder_is_absolute_relative_to_the_properties_or_theirs_and_is_not_modified(
    written: str | None, tmp_path: Path
) -> None:
    folder = write(tmp_path / "models" / "mine", {"model.safetensors": BYTES})
    before = content(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    source = ModelSource(written and written.format(folder=folder), str(tmp_path if written else folder))
    assert model_files.locate(source) == folder
    assert model_files.obtain(source, LogLines(io.StringIO()), tmp_path / "cache") == folder
    assert model_files.refusal(source) is None
    assert weights_problem(folder) is None
    assert content(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == times


@pytest.mark.parametrize(
    ("model_id", "words"),
    [
        ("/not/there", "does not exist"),
        ("./not-there", "does not exist"),
        (None, "config.json; set option.model_id"),
        ("./file", "is a file"),
        ("./streamed", "has only the headers of the weights"),
    ],
)
def test_an_unavailable_folder_is_rejected_with_a_one_line_error(
    model_id: str | None, words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("{}")
    write(tmp_path / "streamed", {MANIFEST: b"{}"})
    source = ModelSource(model_id, str(tmp_path))
    assert model_files.locate(source) is None
    with pytest.raises(ModelNotAvailable) as caught:
        model_files.obtain(source, LogLines(io.StringIO()))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    named = f"option.model_id={model_id}\n" if model_id else ""
    (tmp_path / "serving.properties").write_text(f"engine=MPI\n{named}")
    assert check(tmp_path, {}, this_machine(MACHINE)).reasons[-1] == str(caught.value)


def test_a_folder_with_an_index_of_gguf_files_is_refused(tmp_path: Path) -> None:
    """It could name any file of the machine, whose bytes would then be the weights."""
    source = ModelSource(str(write(tmp_path / "model", {"model.safetensors": BYTES, "gguf.json": b"{}"})))
    assert model_files.locate(source) is None
    with pytest.raises(ModelNotAvailable, match=r"has a gguf.json, which only this server may write"):
        model_files.obtain(source, LogLines(io.StringIO()))


def test_a_local_model_cannot_be_verified_or_pruned(tmp_path: Path) -> None:
    source = ModelSource(model_id=str(tmp_path))
    for action in (model_files.verify, lambda source, view: model_files.prune(view, source)):
        with pytest.raises(ModelNotAvailable, match="is a local model"):
            action(source, LogLines(io.StringIO()))


def test_the_bundled_model_cannot_be_verified_or_pruned() -> None:
    for action in (model_files.verify, lambda source, view: model_files.prune(view, source)):
        with pytest.raises(
            ModelNotAvailable, match=r"SmolLM2-135M-Instruct is bundled .*to convert it again, remove /"
        ):
            action(ModelSource(BUNDLED_MODEL), LogLines(io.StringIO()))
