"""Sharding verbs over a checkpoint: what a layer calls to get its part, and nothing but its part.

Rows are output features (column-parallel layers), columns input features (row-parallel layers), in the
terms of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053). Peak memory beyond the result: one weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

import lmi_kernels
from engines.models.safetensors_files import BadCheckpoint, SafetensorsFiles
from engines.partition import Shard

Pack = Callable[..., lmi_kernels.LinearWeight]
"""`lmi_kernels.pack`, or that with a storage chosen."""


class WeightSource(Protocol):
    """One rank's way to its weights, wherever they come from. Each verb gives a contiguous tensor in the dtype and on
    the device that the model computes with.

    Every verb raises `BadCheckpoint` where a tensor is missing or has another shape than was asked for.
    """

    pack: Pack
    """Makes a matrix ready for a linear layer, stored as the configuration says."""
    owned_bytes: int
    """Bytes of this rank's parameters as they are stored, of all that was given so far."""

    def whole(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor that every rank has, of `shape`."""

    def rows(self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, ...]) -> torch.Tensor:
        """Rows `shards[i]` of tensor `names[i]`, one below the other. shape: of the whole tensors, so joined."""

    def pieces(self, name: str, shards: Sequence[Shard], shape: tuple[int, ...]) -> torch.Tensor:
        """Several ranges of one tensor's rows, in this order, one below the other. shape: of the whole tensor."""

    def columns(self, name: str, shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """Some columns of a matrix of `shape`: [shape[0], shard.size]."""

    def stacked_columns(self, names: Sequence[str], shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """The same columns of several matrices, each of `shape`: [len(names), shape[0], shard.size]."""

    def close(self) -> None:
        """Nothing is asked for any more."""


class WeightReader:
    """`WeightSource` over a folder of safetensors files."""

    def __init__(
        self,
        folder: Path,
        storage: torch.dtype,
        compute: torch.dtype | None,
        device: torch.device,
        pack: Pack = lmi_kernels.pack,
    ) -> None:
        """Weights are rounded to `storage`, then given in `compute` on `device`. compute None: matrices as they are
        stored, vectors in fp32.

        Raises:
            BadCheckpoint: as `SafetensorsFiles`.
        """
        self._files = SafetensorsFiles(folder)
        self._storage = storage
        self._compute = compute
        self._device = device
        self.pack = pack
        self.owned_bytes = 0
        """Bytes of this rank's parameters as they stand in the files."""

    def whole(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor that every rank has.

        Raises:
            BadCheckpoint: it is missing or has another shape.
        """
        return self.pieces(name, [Shard(0, shape[0])], shape)

    def rows(self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, ...]) -> torch.Tensor:
        """The named tensors' rows, one below the other: fused projections are read straight into place.

        Args:
            names, shards: which rows of which tensor.
            shape: of the whole tensors, one below the other.

        Raises:
            BadCheckpoint: a tensor is missing or has another shape, or not all have one dtype.
        """
        for name in names:
            self._check(name, (None, *shape[1:]))
        if sum(self._files.shape(name)[0] for name in names) != shape[0]:
            found = " and ".join(f"{name!r} has {self._files.shape(name)[0]}" for name in names)
            raise BadCheckpoint(f"of {shape[0]} rows that config.json asks for, tensor {found}")
        return self._read_rows(names, shards)

    def pieces(self, name: str, shards: Sequence[Shard], shape: tuple[int, ...]) -> torch.Tensor:
        """Several ranges of one tensor's rows, in this order: what is one projection to us may lie scattered in it.

        Raises:
            BadCheckpoint: the tensor is missing or has another shape.
        """
        self._check(name, shape)
        return self._read_rows([name] * len(shards), shards)

    def columns(self, name: str, shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """Some columns of a matrix of `shape`.

        Raises:
            BadCheckpoint: the tensor is missing or has another shape.
        """
        return self.stacked_columns([name], shard, shape)[0]

    def stacked_columns(self, names: Sequence[str], shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """The same columns of several matrices of `shape`: [len(names), shape[0], shard.size].

        Raises:
            BadCheckpoint: a tensor is missing or has another shape, or not all have one dtype.
        """
        for name in names:
            self._check(name, shape)
        out = torch.empty((len(names), shape[0], shard.size), dtype=self._common_dtype(names))
        for name, part in zip(names, out, strict=True):
            if shard.size == shape[1]:
                self._files.read_rows(name, 0, shape[0], part)
            else:
                self._files.read_columns(name, shard.start, shard.stop, part)
        return self._finish(out)

    def close(self) -> None:
        self._files.close()

    def _read_rows(self, names: Sequence[str], shards: Sequence[Shard]) -> torch.Tensor:
        length = sum(shard.size for shard in shards)
        out = torch.empty((length, *self._files.shape(names[0])[1:]), dtype=self._common_dtype(names))
        start = 0
        for name, shard in zip(names, shards, strict=True):
            if shard.stop > self._files.shape(name)[0]:
                raise BadCheckpoint(f"tensor {name!r} has only {self._files.shape(name)[0]} rows")
            self._files.read_rows(name, shard.start, shard.stop, out[start : start + shard.size])
            start += shard.size
        return self._finish(out)

    def _common_dtype(self, names: Sequence[str]) -> torch.dtype:
        dtypes = {self._files.dtype(name) for name in names}
        if len(dtypes) > 1:
            raise BadCheckpoint(f"tensors {', '.join(map(repr, names))} are not all of one dtype")
        return dtypes.pop()

    def _check(self, name: str, shape: tuple[int | None, ...]) -> None:
        found = self._files.shape(name)
        if len(found) != len(shape) or any(
            want not in (None, got) for want, got in zip(shape, found, strict=True)
        ):
            wanted = "x".join("any" if length is None else str(length) for length in shape)
            raise BadCheckpoint(
                f"tensor {name!r} has shape {'x'.join(map(str, found))}, config.json says {wanted}"
            )

    def _finish(self, tensor: torch.Tensor) -> torch.Tensor:
        self.owned_bytes += tensor.numel() * tensor.element_size()
        # Widening to fp32 changes no number.
        rounded = tensor if self._storage is torch.float32 else tensor.to(self._storage)
        return rounded.to(self._device, given_dtype(tensor.dtype, self._storage, self._compute, tensor.dim()))


def given_dtype(
    stored: torch.dtype, storage: torch.dtype, compute: torch.dtype | None, num_dims: int
) -> torch.dtype:
    """In which dtype a weight is given: in `compute`; where that is None, matrices in the smallest one that holds their
    numbers rounded to `storage`, and vectors in fp32."""
    if compute is not None:
        return compute
    if num_dims < 2:
        return torch.float32
    return stored if storage is torch.float32 else storage
