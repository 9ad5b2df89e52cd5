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
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a split GGUF model, by name."""
    first, _, _ = save_gguf(tmp_path_factory.mktemp("gguf"), "llama", Kind.Q4_0, tensors_per_file=12)
    paths = sorted(first.parent.glob("*.gguf"))
    return {path.name.replace("model", "tiny-Q4_0"): path.read_bytes() for path in paths}


def _obtain(model_id: str, cache: Path) -> Path:
    return model_files.obtain(ModelSource(model_id), LogLines(io.StringIO()), cache)


def _copy(folder: Path, parts: dict[str, bytes]) -> Path:
    """Return the folder of the GGUF files of a description, which must be these files."""
    index = read_index(folder)
    assert index is not None
    assert index.problem == ""
    assert sorted(index.sizes) == sorted(parts)
    return Path(index.folder)


@pytest.mark.parametrize("suffix", [":Q4_0", "/{}"])
def test_only_the_selected_quantization_is_fetched(
    suffix: str, hub: HubServer, parts: dict[str, bytes], tmp_path: Path
) -> None:
    small_files = {"config.json": b"{}", "tokenizer.json": b"{}"}
    hub.commit(ID, {**parts, **small_files, "tiny-Q8_0.gguf": b"large", "README.md": b"read"})
    source = ModelSource(f"{ID}{suffix.format(min(parts))}")
    assert model_files.is_fetched(source)
    assert model_files.locate(source, tmp_path) is None
    folder = _obtain(source.model_id or "", tmp_path)
    copy = _copy(folder, parts)
    assert {path.name for path in copy.iterdir()} == {*parts, *small_files}
    with pytest.raises(ModelNotAvailable, match="several GGUF files"):
        _obtain(ID, tmp_path)


def test_a_single_gguf_model_needs_no_file_name(
    hub: HubServer, parts: dict[str, bytes], tmp_path: Path
) -> None:
    hub.commit(ID, {**parts, "tokenizer.json": b"{}"})
    folder = _obtain(ID, tmp_path)
    assert _copy(folder, parts).exists()
    assert model_files.locate(ModelSource(ID), tmp_path) == folder
    bytes_before = hub.body_bytes
    assert _obtain(ID, tmp_path) == folder
    assert hub.body_bytes == bytes_before


def test_a_file_in_s3_is_selected_by_its_key(s3: S3Lab, parts: dict[str, bytes]) -> None:
    for name, content in {**parts, "tokenizer.json": b"{}", "other.gguf": b"large"}.items():
        s3.put(f"mine/{name}", content)
    assert "has several GGUF files" in s3.refused()
    first = min(parts)
    folder, _ = s3.obtain(f"mine/{first}")
    copy = _copy(folder, parts)
    assert "can only be downloaded whole" in s3.refused(f"mine/{first}", load_format="stream")
    with model_files.in_use(folder):
        (copy / first).unlink()
        assert model_files.prune(LogLines(io.StringIO()), cache=s3.cache) == 0
        assert copy.exists()
    assert model_files.prune(LogLines(io.StringIO()), cache=s3.cache) > 0
    assert not copy.exists()
