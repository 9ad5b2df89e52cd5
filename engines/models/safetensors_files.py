"""Read parts of tensors from a folder of safetensors files: exactly the requested bytes, never a whole file.

The `safetensors` library reads headers. Tensors are not read with it: it maps files into memory, where reading a part
reads more than that part, and a file that is cut meanwhile ends the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class BadCheckpoint(ValueError):
    """A safetensors file, or the set of them, is damaged or does not match the model; the text names file or tensor."""


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
            BadCheckpoint: no safetensors file, a header that does not match its file, or a tensor in two files.
        """
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise BadCheckpoint(f"{folder} holds no .safetensors file; other formats are not loaded")
        self._entries: dict[str, _Entry] = {}
        self._descriptors: dict[Path, int] = {}
        for path in paths:
            for name, entry in _read_entries(path):
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


def _read_entries(path: Path) -> Iterator[tuple[str, _Entry]]:
    """The library validates the header: tensors cover the rest of the file, in the order of `offset_keys`."""
    try:
        file: Any = safe_open(path, "pt")
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path} is not a whole safetensors file: {error}") from None
    with path.open("rb") as raw:
        offset = 8 + int.from_bytes(raw.read(8), "little")
    with file:
        for name in file.offset_keys():
            part = file.get_slice(name)
            kind = part.get_dtype()
            if kind not in _DTYPES:
                raise BadCheckpoint(
                    f"tensor {name!r} of {path} has dtype {kind}; known are {', '.join(_DTYPES)}"
                )
            entry = _Entry(path, _DTYPES[kind], tuple(part.get_shape()), offset)
            yield name, entry
            offset = entry.stop
