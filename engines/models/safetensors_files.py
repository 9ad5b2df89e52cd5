"""Read parts of tensors from a folder of safetensors files: exactly the bytes asked for, never a whole file.

The format (huggingface.co/docs/safetensors): u64 header length, JSON header, tensors. Offsets are checked against
the file's size before anything is read, so a cut or crafted file is an error and not a crash.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class BadCheckpoint(ValueError):
    """A safetensors file, or the set of them, is not what it should be; the text names file and tensor."""


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Of the first byte in the file."""

    @property
    def stop(self) -> int:
        """Behind the last byte in the file."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFiles:
    """All tensors of a folder by name. Files are opened once and stay open until `close`."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            BadCheckpoint: no safetensors file, a header that does not fit its file, or a tensor in two files.
        """
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise BadCheckpoint(f"{folder} holds no .safetensors file; other formats are not loaded")
        self._entries: dict[str, _Entry] = {}
        self._descriptors: dict[Path, int] = {}
        for path in paths:
            for name, entry in _read_header(path).items():
                if name in self._entries:
                    raise BadCheckpoint(f"tensor {name!r} stands in {self._entries[name].file} and in {path}")
                self._entries[name] = entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entry(name).dtype

    def read_rows(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        """Read rows [start, stop) of the first dimension into `out`, a contiguous tensor of that shape."""
        entry = self._entry(name)
        row_bytes = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        self._read(entry, entry.offset + start * row_bytes, out)

    def read_columns(self, name: str, start: int, stop: int, out: torch.Tensor) -> None:
        """Read columns [start, stop) of a matrix into `out`, a contiguous [rows, stop - start] tensor.

        One read a row: what lies between is not ours to read.
        """
        entry = self._entry(name)
        rows, columns = entry.shape
        size = entry.dtype.itemsize
        for row in range(rows):
            self._read(entry, entry.offset + (row * columns + start) * size, out[row])

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise BadCheckpoint(f"the checkpoint has no tensor {name!r}") from None

    def _read(self, entry: _Entry, offset: int, out: torch.Tensor) -> None:
        if out.dtype != entry.dtype or not out.is_contiguous():
            raise ValueError("the target must be contiguous and of the file's dtype")
        descriptor = self._descriptors.get(entry.file)
        if descriptor is None:
            descriptor = self._descriptors[entry.file] = os.open(entry.file, os.O_RDONLY | os.O_CLOEXEC)
        target = memoryview(out.view(-1).view(torch.uint8).numpy().data)
        done = 0
        while done < len(target):
            count = os.preadv(descriptor, [target[done:]], offset + done)
            if count == 0:
                raise BadCheckpoint(f"{entry.file} ends before the tensor that its header announces")
            done += count


def _read_header(path: Path) -> dict[str, _Entry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size + 1
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise BadCheckpoint(
                f"{path} is not a whole safetensors file: its header does not fit into {size} bytes"
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise BadCheckpoint(f"the header of {path} is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadCheckpoint(f"the header of {path} is not a JSON object")
    start = 8 + length
    entries = {
        name: _entry(path, name, description, start, size)
        for name, description in header.items()
        if name != "__metadata__"
    }
    ordered = sorted(entries.items(), key=lambda item: (item[1].offset, item[1].stop))
    for (name, entry), (other, following) in pairwise(ordered):
        if entry.stop > following.offset:
            raise BadCheckpoint(f"tensors {name!r} and {other!r} of {path} overlap: it is damaged")
    return entries


def _entry(path: Path, name: str, description: Any, start: int, size: int) -> _Entry:
    try:
        kind, shape = str(description["dtype"]), tuple(description["shape"])
        begin, end = description["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise BadCheckpoint(f"tensor {name!r} of {path} is not described properly") from None
    if any(type(number) is not int for number in (*shape, begin, end)):
        raise BadCheckpoint(f"tensor {name!r} of {path} is not described in whole numbers")
    if kind not in _DTYPES:
        raise BadCheckpoint(f"tensor {name!r} of {path} has dtype {kind}; known are {', '.join(_DTYPES)}")
    expected = math.prod(shape) * _DTYPES[kind].itemsize
    if any(length < 0 for length in shape) or begin < 0 or end - begin != expected or start + end > size:
        raise BadCheckpoint(f"tensor {name!r} of {path} does not lie inside its file: it is cut or damaged")
    return _Entry(path, _DTYPES[kind], shape, start + begin)
