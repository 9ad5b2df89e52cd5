"""Interface for reading tensors from a folder of safetensors files or from GGUF files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set

import torch

from engines.models.byte_ranges import ByteRanges
from engines.models.mapped_files import MappedRange
from engines.partition import Shard


class BadCheckpoint(ValueError):
    """The weight files are damaged, incomplete, or do not match the model. The message names the file or tensor."""


class TensorFiles(ABC):
    """The tensors of a model by name. Reading is thread-safe.

    Methods raise `BadCheckpoint` if there is no tensor with the name.
    """

    ranges: ByteRanges

    @abstractmethod
    def __contains__(self, name: str) -> bool: ...

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor after reading."""

    @abstractmethod
    def read_rows(self, name: str, start: int, stop: int, out: torch.Tensor) -> int:
        """Read rows [start, stop) of the first dimension into `out`, a contiguous tensor of that shape.

        Returns: the number of bytes read.
        """

    @abstractmethod
    def read_columns(self, name: str, rows: Shard, columns: Shard, out: torch.Tensor) -> int:
        """Read some columns of some rows of a matrix into `out`, a contiguous [rows.size, columns.size] tensor.

        Returns: the number of bytes read.
        """

    def map_rows(self, name: str, start: int, stop: int) -> tuple[torch.Tensor, MappedRange] | None:
        """Return rows [start, stop) of the first dimension in the page cache, and the range to load before they are
        used. Return None if the tensor cannot be mapped."""
        return None

    def require_used(self, names: Set[str]) -> None:  # noqa: B027  most checkpoints have tensors without use
        """Raise `BadCheckpoint` if the result of the model depends on other tensors than those in `names`."""

    def close(self) -> None:
        self.ranges.close()
