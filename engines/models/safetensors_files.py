"""Read parts of tensors from a folder of safetensors files: exactly the requested bytes, never a whole file.

The `safetensors` library only validates headers here. It maps files into memory, so reading a part would read more than
that part, and a truncated file would kill the process. Here only parts are mapped, and loaded before they are used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engines.git_lfs import pointer_problem
from engines.models.byte_ranges import ByteRanges, FolderRanges
from engines.models.mapped_files import MappedRange
from engines.models.tensor_files import BadCheckpoint, TensorFiles
from engines.models.weight_files import weight_files
from engines.partition import Shard

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    kind: str
    """Dtype as the header names it."""
    shape: tuple[int, ...]
    offset: int
    """Offset of the first byte in the file."""

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.kind]


class SafetensorsFiles(TensorFiles):
    """The tensors of a folder. Reading a tensor with an unsupported dtype raises `BadCheckpoint`."""

    def __init__(self, folder: Path, ranges: ByteRanges | None = None) -> None:
        """Read the headers of the model's files in `folder`.

        ranges: tensors are read from it; None: from the files in `folder`.

        Raises:
            BadCheckpoint: no safetensors file, a header that does not match its file, or a tensor in two files.
        """
        paths = weight_files(folder)
        if not paths:
            raise BadCheckpoint(f"{folder} contains no .safetensors file; other formats are not supported")
        self.ranges = FolderRanges(folder) if ranges is None else ranges
        self._entries: dict[str, _Entry] = {}
        for path in paths:
            for name, entry in _read_entries(path):
                if name in self._entries:
                    raise BadCheckpoint(f"tensor {name!r} is in both {self._entries[name].file} and {path}")
                self._entries[name] = entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entry(name).dtype

    def read_rows(self, name: str, start: int, stop: int, out: torch.Tensor) -> int:
        entry = self._entry(name)
        row_bytes = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        target = _bytes_of(entry, out)
        self._read(entry, start * row_bytes, target)
        return len(target)

    def read_columns(self, name: str, rows: Shard, columns: Shard, out: torch.Tensor) -> int:
        """Read row by row, because the bytes between the columns of two rows are not needed."""
        entry = self._entry(name)
        width = entry.shape[1]
        size = columns.size * entry.dtype.itemsize
        target = _bytes_of(entry, out)
        for row in range(rows.size):
            first = (rows.start + row) * width + columns.start
            self._read(entry, first * entry.dtype.itemsize, target[row * size : (row + 1) * size])
        return len(target)

    def map_rows(self, name: str, start: int, stop: int) -> tuple[torch.Tensor, MappedRange] | None:
        entry = self._entry(name)
        shape = (stop - start, *entry.shape[1:])
        row_bytes = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        offset, size = entry.offset + start * row_bytes, shape[0] * row_bytes
        if not size or offset % entry.dtype.itemsize:
            return None
        try:
            mapped = self.ranges.map(entry.file.name, offset, size)
        except EOFError as error:
            raise BadCheckpoint(str(error)) from None
        if mapped is None:
            return None
        return torch.frombuffer(mapped.view, dtype=entry.dtype).view(shape), mapped

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise BadCheckpoint(f"the checkpoint has no tensor {name!r}")
        if entry.kind not in _DTYPES:
            raise BadCheckpoint(
                f"tensor {name!r} of {entry.file} has dtype {entry.kind}; supported: {', '.join(_DTYPES)}"
            )
        return entry

    def _read(self, entry: _Entry, offset: int, target: memoryview) -> None:
        """Fill `target`. offset: bytes from the start of the tensor."""
        try:
            self.ranges.read(entry.file.name, entry.offset + offset, target)
        except EOFError as error:
            raise BadCheckpoint(str(error)) from None


def _bytes_of(entry: _Entry, out: torch.Tensor) -> memoryview:
    if out.dtype != entry.dtype or not out.is_contiguous():
        raise ValueError("the target must be contiguous and of the file's dtype")
    return memoryview(out.view(-1).view(torch.uint8).numpy().data)


def _read_entries(path: Path) -> Iterator[tuple[str, _Entry]]:
    try:
        with safe_open(path, "pt"):
            pass  # the header is complete, and its tensors cover the rest of the file
    except (SafetensorError, OSError) as error:
        incomplete = f"{path} is not a complete safetensors file: {error}"
        raise BadCheckpoint(pointer_problem(path) or incomplete) from None
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        header = json.loads(raw.read(length))
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        offset = 8 + length + tensor["data_offsets"][0]
        yield name, _Entry(path, tensor["dtype"], tuple(tensor["shape"]), offset)
