"""Weights of linears in panels, as the native kernels read them; see `native/weight.cpp`."""

from __future__ import annotations

import weakref
from functools import cache

import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import STORAGES, Epilogue, Function, Storage

_LANES = 16
"""Rows begin at multiples of so many numbers: 64 bytes."""
_BLOCK = 128
"""Rows that are widened to fp32 at a time: they stay in a cache."""
_ROTATED = 64
"""Numbers that are rotated together: `kBlock` of `native/rotate.inc`."""


def padded(width: int) -> int:
    return -(-width // _LANES) * _LANES


@cache
def _hadamard() -> torch.Tensor:
    """The Hadamard matrix of order 64, divided by 8: orthogonal and symmetric."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _ROTATED:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / 8


def rotate_rows(rows: torch.Tensor) -> torch.Tensor:
    """Multiply blocks of 64 numbers by the Hadamard matrix of that order, divided by 8: orthogonal, its own inverse.

    Args:
        rows: [num_rows, width], of floating point.

    Returns: [num_rows, width rounded up to 64], fp32.
    """
    rows = torch.nn.functional.pad(rows.float(), (0, -rows.shape[1] % _ROTATED))
    return (rows.view(-1, _ROTATED) @ _hadamard()).view(rows.shape)


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate each row, then round it to integers of -127 to 127 times a scale, max|row| / 127.

    Args:
        weight: [rows, columns], of floating point.

    Returns:
        The integers [rows, columns rounded up to 64], int8, and the scales [rows], fp32: 0 of a row of zeros.
    """
    integers = torch.empty(len(weight), -(-weight.shape[1] // _ROTATED) * _ROTATED, dtype=torch.int8)
    scales = torch.empty(len(weight))
    for start in range(0, len(weight), _BLOCK):
        block = rotate_rows(weight[start : start + _BLOCK])
        scale = block.abs().amax(dim=1) / 127
        factor = torch.where(scale > 0, 1 / scale, 0)
        integers[start : start + _BLOCK] = block.mul_(factor[:, None]).round_().clamp_(-127, 127)
        scales[start : start + _BLOCK] = scale
    return integers, scales


def _paired(library: Library, weight: torch.Tensor) -> tuple[Storage, ...]:
    """BF16_PAIRS where the weight is bf16 and this instruction set multiplies it."""
    fits = weight.dtype == torch.bfloat16 and library.instructions == "amx"
    return (Storage.BF16_PAIRS,) if fits else ()


class NativeWeight:
    """A matrix [out_features, in_features] in panels, and its bias."""

    def __init__(
        self,
        library: Library,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        gate: Function | None = None,
        storage: Storage | None = None,
    ) -> None:
        """
        Args:
            weight: [out_features, in_features]; bf16, fp16 or fp32.
            bias: [out_features] or None.
            gate: the activation of gates, which are the first half of the rows; the second is what they let through.
                They are interleaved for `Epilogue.ACTIVATE_AND_MUL`. None: there are no gates.
            storage: None stores the numbers as they are; INT8 rounds them, with a scale for each output feature;
                BF16_PAIRS stores bf16 as it is, for AMX.

        Raises:
            ValueError: a dtype that is not stored, or a storage that it cannot be put in.
            MemoryError: there is no memory for it.
        """
        if weight.dtype not in STORAGES:
            raise ValueError(f"a weight of {weight.dtype}: bf16, fp16 and fp32 are stored")
        storage = STORAGES[weight.dtype] if storage is None else storage
        if storage not in (STORAGES[weight.dtype], Storage.INT8, *_paired(library, weight)):
            raise ValueError(f"a weight of {weight.dtype} cannot be stored as {storage.name}")
        self.out_features, self.in_features = weight.shape
        self.gate = gate
        self.storage = storage
        columns = self._padded_columns if self.gated else self.out_features
        handle = library.weight_new(columns, self.in_features, self.storage, bias is not None)
        if not handle:
            raise MemoryError(f"no memory for a weight of {self.out_features} x {self.in_features}")
        self.handle: int = handle
        weakref.finalize(self, library.weight_free, handle)
        scales = None
        if self.storage == Storage.INT8:
            weight, scales = quantise_rows(weight)
        weight = weight.contiguous()
        bias = None if bias is None else bias.float().contiguous()
        for first, rows, width in self._runs():
            part = weight[rows : rows + width]
            library.weight_fill(handle, first, part.data_ptr(), width)
            if scales is not None:
                library.weight_fill_scales(handle, first, scales[rows:].data_ptr(), width)
            if bias is not None:
                library.weight_fill_bias(handle, first, bias[rows:].data_ptr(), width)

    @property
    def gated(self) -> bool:
        return self.gate is not None

    @property
    def width(self) -> int:
        """Numbers in each row of a product, after its epilogue."""
        return self.out_features // 2 if self.gated else self.out_features

    @property
    def epilogue(self) -> dict[str, int]:
        """Fields of the struct of a product."""
        if self.gate is None:
            return {"epilogue": Epilogue.STORE}
        return {"epilogue": Epilogue.ACTIVATE_AND_MUL, "gate": self.gate}

    def scratch_sizes(self, num_rows: int) -> dict[str, tuple[int, torch.dtype]]:
        """Numbers that a product of so many rows needs for itself, by field of its struct: rows as integers, where
        the weight is of integers, or in three parts of bf16, where it is of bf16 in pairs."""
        if self.storage == Storage.BF16_PAIRS:
            return {"integers": (num_rows * 6 * -(-self.in_features // 32) * 32, torch.int8)}
        if self.storage != Storage.INT8:
            return {}
        width = -(-self.in_features // 64) * 64
        return {"integers": (num_rows * width, torch.int8), "row_scales": (num_rows, torch.float32)}

    @property
    def _padded_columns(self) -> int:
        """Of a gated weight: whole panels of 16 gates and what they let through."""
        return -(-self.out_features // 2 // 16) * 32

    def _runs(self) -> list[tuple[int, int, int]]:
        """(first column in the panels, first row, how many)."""
        if not self.gated:
            return [(0, 0, self.out_features)]
        middle = self.out_features // 2
        runs = []
        for start in range(0, middle, 16):
            width = min(16, middle - start)
            runs += [(2 * start, start, width), (2 * start + 16, middle + start, width)]
        return runs
