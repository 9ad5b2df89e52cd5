"""What a rank reads tensors from: a folder of safetensors files, or a GGUF file."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engines.models.byte_ranges import ByteRanges
from engines.partition import Shard


class BadCheckpoint(ValueError):
    """A file of weights, or the set of them, is damaged or does not match the model; the text names file or tensor."""


class TensorFiles(ABC):
    """All tensors of a model by name. Several threads may read.

    Methods raise `BadCheckpoint` where there is no tensor of a name.
    """

    ranges: ByteRanges

    @abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype in which a tensor is read."""

    @abstractmethod
    def read_rows(self, name: str, start: int, stop: int, out: torch.Tensor) -> int:
        """Read rows [start, stop) of the first dimension into `out`, a contiguous tensor of that shape.

        Returns: the bytes that were read.
        """

    @abstractmethod
    def read_columns(self, name: str, rows: Shard, columns: Shard, out: torch.Tensor) -> int:
        """Read some columns of some rows of a matrix into `out`, a contiguous [rows.size, columns.size] tensor.

        Returns: the bytes that were read.
        """

    def close(self) -> None:
        self.ranges.close()
