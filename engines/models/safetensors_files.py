"""Read parts of tensors from a folder of safetensors files: exactly the requested bytes, never a whole file.

The `safetensors` library only validates headers here. It maps files into memory, so reading a part would read more than
that part, and a truncated file would kill the process. Here only parts are mapped, and loaded before they are used.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import SafetensorError

from engines.git_lfs import pointer_problem
from engines.models.byte_ranges import ByteRanges, FolderRanges
from engines.models.mapped_files import MappedRange
from engines.models.tensor_files import BadCheckpoint, TensorFiles
from engines.models.weight_files import StoredTensor, read_header, weight_files
from engines.partition import Shard

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


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
        self._tensors: dict[str, StoredTensor] = {}
        for path in paths:
            for tensor in _read_header(path):
                if (other := self._tensors.get(tensor.name)) is not None:
                    raise BadCheckpoint(f"tensor {tensor.name!r} is in both {other.file} and {path}")
                self._tensors[tensor.name] = tensor

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._stored(name).dtype]

    def read_rows(self, name: str, start: int, stop: int, out: torch.Tensor) -> int:
        tensor = self._stored(name)
        target = _bytes_of(tensor, out)
        self._read(tensor, start * math.prod(tensor.shape[1:]) * out.itemsize, target)
        return len(target)

    def read_columns(self, name: str, rows: Shard, columns: Shard, out: torch.Tensor) -> int:
        """Read row by row, because the bytes between the columns of two rows are not needed."""
        tensor = self._stored(name)
        width = tensor.shape[1]
        size = columns.size * out.itemsize
        target = _bytes_of(tensor, out)
        for row in range(rows.size):
            first = (rows.start + row) * width + columns.start
            self._read(tensor, first * out.itemsize, target[row * size : (row + 1) * size])
        return len(target)

    def map_rows(self, name: str, start: int, stop: int) -> tuple[torch.Tensor, MappedRange] | None:
        tensor, dtype = self._stored(name), self.dtype(name)
        shape = (stop - start, *tensor.shape[1:])
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        offset, size = tensor.offset + start * row_bytes, shape[0] * row_bytes
        if not size or offset % dtype.itemsize:
            return None
        try:
            mapped = self.ranges.map(tensor.file.name, offset, size)
        except EOFError as error:
            raise BadCheckpoint(str(error)) from None
        if mapped is None:
            return None
        return torch.frombuffer(mapped.view, dtype=dtype).view(shape), mapped

    def _stored(self, name: str) -> StoredTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise BadCheckpoint(f"the checkpoint has no tensor {name!r}")
        if tensor.dtype not in _DTYPES:
            raise BadCheckpoint(
                f"tensor {name!r} of {tensor.file} has dtype {tensor.dtype}; supported: {', '.join(_DTYPES)}"
            )
        return tensor

    def _read(self, tensor: StoredTensor, offset: int, target: memoryview) -> None:
        """Fill `target`. offset: bytes from the start of the tensor."""
        try:
            self.ranges.read(tensor.file.name, tensor.offset + offset, target)
        except EOFError as error:
            raise BadCheckpoint(str(error)) from None


def _bytes_of(tensor: StoredTensor, out: torch.Tensor) -> memoryview:
    if out.dtype != _DTYPES[tensor.dtype] or not out.is_contiguous():
        raise ValueError("the target must be contiguous and of the file's dtype")
    return memoryview(out.view(-1).view(torch.uint8).numpy().data)


def _read_header(path: Path) -> list[StoredTensor]:
    try:
        return read_header(path)
    except (SafetensorError, OSError) as error:
        incomplete = f"{path} is not a complete safetensors file: {error}"
        raise BadCheckpoint(pointer_problem(path) or incomplete) from None
