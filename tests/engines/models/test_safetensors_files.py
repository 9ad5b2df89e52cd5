"""Reading of safetensors files: rows, columns, dtypes, and damaged files."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from safetensors.torch import save_file

from engines.models.safetensors_files import SafetensorsFiles
from engines.models.tensor_files import BadCheckpoint
from engines.partition import Shard
from tests.support.examples import examples
from tests.support.model_files import LFS_POINTER
from tests.support.seeds import fresh_generator

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
PEAK_KIB = 64 * 1024
"""Limit of the memory that it may take to refuse a bad file."""


def _write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def _tensor(shape: Any = (2, 3), offsets: Any = (0, 24), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


Open = Callable[[], SafetensorsFiles]


@pytest.fixture
def open_files(tmp_path: Path) -> Iterator[Open]:
    """Open the files in `tmp_path`, and close them after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(SafetensorsFiles(tmp_path)))


def _rows(files: SafetensorsFiles, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
    """Read some rows of a tensor, or all."""
    shape = files.shape(name)
    stop = (shape[0] if shape else 1) if stop is None else stop
    out = torch.empty((stop - start, *shape[1:]) if shape else (), dtype=files.dtype(name))
    files.read_rows(name, start, stop, out)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (16, 33)])
def test_any_rows_and_columns_can_be_read(
    shape: tuple[int, int], dtype: torch.dtype, tmp_path: Path, open_files: Open
) -> None:
    generator = fresh_generator()
    tensors = {name: torch.randn(shape, generator=generator).to(dtype) for name in ("a", "b", "c")}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    files = open_files()
    for name, tensor in tensors.items():
        assert files.shape(name) == shape
        assert files.dtype(name) == dtype
        for start in range(shape[0] + 1):
            for stop in range(start, shape[0] + 1, 3):
                assert torch.equal(_rows(files, name, start, stop), tensor[start:stop])
        for start in range(0, shape[1], 4):
            for stop in range(start, shape[1] + 1, 5):
                out = torch.empty(shape[0], stop - start, dtype=dtype)
                files.read_columns(name, Shard(0, shape[0]), Shard(start, stop), out)
                assert torch.equal(out, tensor[:, start:stop])


@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 4), (2, 3, 4)])
def test_tensors_with_other_numbers_of_dimensions(
    shape: tuple[int, ...], tmp_path: Path, open_files: Open
) -> None:
    tensor = torch.randn(shape, generator=fresh_generator())
    save_file({"t": tensor}, tmp_path / "model.safetensors")
    files = open_files()
    assert files.shape("t") == shape
    assert torch.equal(_rows(files, "t"), tensor)


@pytest.mark.parametrize("single", [True, False])
def test_shards_of_another_checkpoint_are_not_read(single: bool, tmp_path: Path, open_files: Open) -> None:
    own = tmp_path / ("model.safetensors" if single else "model-00001-of-00001.safetensors")
    save_file({"a": torch.ones(2)}, own)
    for i in range(2):
        save_file(
            {"a": torch.zeros(2), f"b{i}": torch.zeros(2)}, tmp_path / f"model-0000{i}-of-00002.safetensors"
        )
    stale = "model-00000-of-00002.safetensors"
    index = {"weight_map": {"a": stale if single else own.name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    files = open_files()
    assert torch.equal(_rows(files, "a"), torch.ones(2))
    assert "b0" not in files
    assert "b1" not in files


def test_an_integer_tensor_is_refused_only_when_it_is_read(tmp_path: Path, open_files: Open) -> None:
    """Old checkpoints of GPT-2 and GPT-NeoX contain causal masks."""
    values = torch.randn(3, 4, generator=fresh_generator())
    masks = {"h.0.bias": torch.ones(5, 7, dtype=torch.bool), "h.1.bias": torch.ones(9, dtype=torch.uint8)}
    wide = {"steps": torch.ones(3, dtype=torch.int64), "scale": torch.ones(2, 2, dtype=torch.float8_e4m3fn)}
    save_file({"w": values, "z": values + 1, **masks, **wide}, tmp_path / "model.safetensors")
    files = open_files()
    assert torch.equal(_rows(files, "w"), values)
    assert torch.equal(_rows(files, "z"), values + 1)
    kinds = {"h.0.bias": "BOOL", "h.1.bias": "U8", "steps": "I64", "scale": "F8_E4M3"}
    for name, kind in kinds.items():
        assert name in files
        with pytest.raises(
            BadCheckpoint, match=rf"'{name}' of .* has dtype {kind}; supported: F32, F16, BF16"
        ):
            files.dtype(name)


def test_an_output_tensor_of_another_dtype_is_refused(tmp_path: Path, open_files: Open) -> None:
    save_file({"a": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    files = open_files()
    with pytest.raises(ValueError, match="of the file's dtype"):
        files.read_rows("a", 0, 2, torch.empty(2, 2, dtype=torch.float16))
    with pytest.raises(ValueError, match="contiguous"):
        files.read_rows("a", 0, 2, torch.empty(2, 4)[:, ::2])


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BadCheckpoint, match=r"contains no \.safetensors file"):
        SafetensorsFiles(tmp_path)


def test_the_same_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "y.safetensors")
    with pytest.raises(BadCheckpoint, match=r"tensor 'a' is in both .*x\.safetensors and .*y\.safetensors"):
        SafetensorsFiles(tmp_path)


BAD_HEADERS: dict[str, Any] = {
    "not JSON": b"{",
    "a list": [],
    "no offsets": {"a": {"dtype": "F32", "shape": [1]}},
    "unknown dtype": {"a": _tensor(dtype="Q4")},
    "wrong dtype": {"a": _tensor(dtype="F16")},
    "beyond the end": {"a": _tensor(offsets=[8, 32])},
    "negative shape": {"a": _tensor(shape=[-2, -3])},
    "overlap": {"a": _tensor(), "b": _tensor(shape=[2], offsets=[16, 24])},
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_bad_header_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    _write(path, BAD_HEADERS[name], bytes(24))
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        SafetensorsFiles(tmp_path)


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(LFS_POINTER)
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors is a Git LFS pointer, .* run git lfs pull"):
        SafetensorsFiles(tmp_path)


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """Assert that the block takes little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < PEAK_KIB


@pytest.mark.parametrize("length", [3, 10_000, 10**8 + 1, 2**31, 2**63, 2**64 - 1])
@pytest.mark.parametrize("file_size", [None, 10**9])
def test_an_impossible_header_length_is_refused_without_reading(
    length: int, file_size: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    _write(path, {"a": _tensor()}, bytes(24), length)
    if file_size is not None:
        os.truncate(path, file_size)  # a sparse file, which takes no disk space
    with _little_memory(), pytest.raises(BadCheckpoint, match="not a complete safetensors file"):
        SafetensorsFiles(tmp_path)


def _whole_file(folder: Path) -> bytes:
    path = folder / "whole"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5).half()}, path)
    return path.read_bytes()


def test_a_file_truncated_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = _whole_file(tmp_path)
    for size in range(len(whole)):
        (tmp_path / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(BadCheckpoint):
            SafetensorsFiles(tmp_path)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_never_crash(data: st.DataObject, tmp_path: Path) -> None:
    """The file is refused, or all its tensors can be read in full."""
    damaged = bytearray(_whole_file(tmp_path))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with _little_memory(), contextlib.suppress(BadCheckpoint):
        files = SafetensorsFiles(tmp_path)
        for name in ("a", "b"):
            _rows(files, name)
        files.close()
