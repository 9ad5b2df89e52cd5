"""GGUF files in a hub and in S3: the selected file is fetched and described by a model folder."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from engines.models.gguf_index import read_index
from lmi_server.config import ModelSource
from tests.container.models.files.s3_lab import S3Lab
from tests.support.gguf_models import save_gguf
from tests.support.hub_server import HubServer

ID = "owner/tiny-GGUF"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of a split GGUF model."""
    first, _, _ = save_gguf(tmp_path_factory.mktemp("gguf"), "llama", Kind.Q4_0, tensors_per_file=12)
    return sorted(first.parent.glob("*.gguf"))


def _obtain(model_id: str, cache: Path) -> Path:
    return model_files.obtain(ModelSource(model_id), LogLines(io.StringIO()), cache)


def _fetched(folder: Path) -> list[str]:
    """Return the names of the GGUF files of a description, and check their sizes."""
    index = read_index(folder)
    assert index is not None
    assert index.problem == ""
    return sorted(index.sizes)


@pytest.mark.parametrize("suffix", [":Q4_0", "/tiny-Q4_0-00001-of-0000{}.gguf"])
def test_only_the_selected_quantization_is_fetched(
    suffix: str, hub: HubServer, parts: list[Path], tmp_path: Path
) -> None:
    files = {
        f"tiny-Q4_0-0000{i}-of-0000{len(parts)}.gguf": part.read_bytes() for i, part in enumerate(parts, 1)
    }
    small_files = {"config.json": b"{}", "tokenizer.json": b"{}"}
    hub.commit(ID, {**files, **small_files, "tiny-Q8_0.gguf": b"large", "README.md": b"read"})
    source = ModelSource(f"{ID}{suffix.format(len(parts))}")
    assert model_files.is_fetched(source)
    assert model_files.locate(source, tmp_path) is None
    folder = _obtain(source.model_id or "", tmp_path)
    assert _fetched(folder) == sorted(files)
    index = read_index(folder)
    assert index is not None
    assert {path.name for path in Path(index.folder).iterdir()} == {*files, *small_files}
    with pytest.raises(ModelNotAvailable, match="several GGUF files"):
        _obtain(ID, tmp_path)


def test_a_single_gguf_model_needs_no_file_name(hub: HubServer, parts: list[Path], tmp_path: Path) -> None:
    files = {f"tiny-0000{i}-of-0000{len(parts)}.gguf": part.read_bytes() for i, part in enumerate(parts, 1)}
    hub.commit(ID, {**files, "tokenizer.json": b"{}"})
    folder = _obtain(ID, tmp_path)
    assert _fetched(folder) == sorted(files)
    assert model_files.locate(ModelSource(ID), tmp_path) == folder
    bytes_before = hub.body_bytes
    assert _obtain(ID, tmp_path) == folder
    assert hub.body_bytes == bytes_before


def test_a_file_in_s3_is_selected_by_its_key(s3: S3Lab, parts: list[Path]) -> None:
    for part in parts:
        s3.put(f"mine/{part.name}", part.read_bytes())
    s3.put("mine/tokenizer.json", b"{}")
    s3.put("mine/other.gguf", b"large")
    assert "has several GGUF files" in s3.refused()
    folder, _ = s3.obtain(f"mine/{parts[0].name}")
    assert _fetched(folder) == [part.name for part in parts]
    assert "can only be downloaded whole" in _error_of_streaming(s3, f"mine/{parts[0].name}")
    index = read_index(folder)
    assert index is not None
    copy = Path(index.folder)
    with model_files.in_use(folder):
        (copy / parts[0].name).unlink()
        assert model_files.prune(LogLines(io.StringIO()), cache=s3.cache) == 0
        assert copy.exists()
    assert model_files.prune(LogLines(io.StringIO()), cache=s3.cache) > 0
    assert not copy.exists()


def _error_of_streaming(s3: S3Lab, prefix: str) -> str:
    with pytest.raises(ModelNotAvailable) as caught:
        s3.obtain(prefix, load_format="stream")
    return str(caught.value)
