"""Weights of linear layers in panels, the layout of the native kernels. See `native/weight.cpp`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property

import torch

from lmi_kernels.cpu.structs import STORAGES, Epilogue, Function, Linear, Step, Storage
from lmi_kernels.cpu.team import Program, Team

_LANES = 16
"""Alignment of rows in numbers: 64 bytes."""


def padded(width: int) -> int:
    return -(-width // _LANES) * _LANES


def blocks_of(weight: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the matrices to stack. Raises: ValueError: their widths or dtypes differ."""
    blocks = [weight] if isinstance(weight, torch.Tensor) else list(weight)
    if len({(each.dtype, each.shape[1]) for each in blocks}) != 1:
        found = ", ".join(f"{each.dtype} {tuple(each.shape)}" for each in blocks)
        raise ValueError(f"stacked weights must have the same dtype and width (got {found})")
    return blocks


class NativeWeight:
    """A matrix, [out_features, in_features], in panels, and its bias."""

    def __init__(
        self,
        team: Team,
        weight: torch.Tensor | Sequence[torch.Tensor],
        bias: torch.Tensor | None = None,
        gate: Function | None = None,
        storage: Storage | None = None,
        norms: torch.Tensor | None = None,
    ) -> None:
        """
        Args:
            team: fills the weight, with all its threads.
            weight: [out_features, in_features]; bf16, fp16 or fp32. A sequence is stacked.
            bias: [out_features] or None.
            gate: activation of the gates. The first half of the rows are gates, the second half is the up projection;
                they are interleaved for `Epilogue.ACTIVATE_AND_MUL`. None: no gates.
            storage: None keeps the weight's dtype; with AMX, bf16 is stored as BF16_PAIRS. INT8 rotates and quantizes
                each row, with a scale of its own. See `native/rotate.inc` and `native/quantize.inc`.
            norms: with INT8, [2, out_features], fp32, or None: overwritten with upper bounds of the norm of each row,
                before and after quantization, and of the norm of its quantization error.

        Raises:
            ValueError: unsupported dtype, or a storage that does not support the dtype.
            MemoryError: not enough memory.
        """
        library = team.library
        blocks = blocks_of(weight)
        dtype = blocks[0].dtype
        if dtype not in STORAGES:
            raise ValueError(f"weight dtype: not supported (got {dtype}); allowed: bf16, fp16, fp32")
        pairs = dtype is torch.bfloat16 and library.instructions == "amx"
        unquantized = Storage.BF16_PAIRS if pairs else STORAGES[dtype]
        storage = unquantized if storage is None else storage
        if storage not in (unquantized, Storage.INT8):
            raise ValueError(f"a weight of {dtype} cannot be stored as {storage.name}")
        self.out_features, self.in_features = sum(map(len, blocks)), blocks[0].shape[1]
        self.gate = gate
        self.gated = gate is not None
        self.width = self.out_features // 2 if self.gated else self.out_features
        """Width of the product's rows, after the epilogue."""
        self.storage = storage
        columns = self._padded_columns if self.gated else self.out_features
        handle = library.weight_new(columns, self.in_features, self.storage, bias is not None)
        if not handle:
            raise MemoryError(f"no memory for a weight of {self.out_features} x {self.in_features}")
        self.handle: int = handle
        weakref.finalize(self, library.weight_free, handle)
        bias = None if bias is None else bias.float()
        if not team.fill_weight(handle, blocks, STORAGES[dtype], bias, norms, self.gated):
            raise MemoryError(f"no memory to quantize a weight of {self.out_features} x {self.in_features}")

    @property
    def epilogue(self) -> dict[str, int]:
        """Fields of the product's struct for its epilogue."""
        if self.gate is None:
            return {"epilogue": Epilogue.STORE}
        return {"epilogue": Epilogue.ACTIVATE_AND_MUL, "gate": self.gate}

    @cached_property
    def product(self) -> tuple[Linear, Program, Step]:
        """The product as a program, and its step. Kept, because making them can take longer than the product."""
        linear = Linear(weight=self.handle, **self.epilogue)
        return linear, Program([linear]), Step()

    def check_width(self, x: torch.Tensor) -> None:
        """Raise ValueError if rows, [num_rows, width], have another width than the weight."""
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"rows have {x.shape[-1]} features, but the weight has {self.in_features} input features"
            )

    def scratch_sizes(self, num_rows: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return size and dtype of the scratch buffers for a product with `num_rows` rows, by field of its struct.

        They hold the rows as integers (INT8), or split into three bf16 parts (BF16_PAIRS).
        """
        if self.storage == Storage.BF16_PAIRS:
            return {"integers": (num_rows * 6 * -(-self.in_features // 32) * 32, torch.int8)}
        if self.storage != Storage.INT8:
            return {}
        width = -(-self.in_features // 64) * 64
        return {"integers": (num_rows * width, torch.int8), "row_scales": (num_rows, torch.float32)}

    @property
    def _padded_columns(self) -> int:
        """Number of columns of a gated weight, in whole panels of 16 gates and 16 ups."""
        return -(-self.out_features // 2 // 16) * 32
