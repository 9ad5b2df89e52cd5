"""Random weights (`option.load_format=dummy`), generated on the device that computes with them.

Element i of a tensor depends only on i and the tensor's name. It is a hash of both (SplitMix64, Steele et al. 2014,
doi:10.1145/2660193.2660195); the four 16-bit parts of the hash are summed to approximate a normal distribution. So each
rank generates only its own shard, the shards fit together, and weights have the same bits on every start and device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

import lmi_kernels
from engines.models.tensor_files import BadCheckpoint
from engines.models.weights import Pack, WeightSource
from engines.partition import Shard

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_GPU_BLOCK, _CPU_BLOCK = 1 << 21, 1 << 16
"""Numbers generated at a time. Two int64 blocks of this size fit in the device's cache."""

_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""SplitMix64: z ^= z >> shift; z *= factor. A last z ^= z >> 31 follows."""
_LAST_SHIFT = 31
_HALVES = 0x0000FFFF0000FFFF
_SUM_OF_TWO = 0x0000000100000001
_MIDDLE = 4 * 0xFFFF // 2
_STEP = 0.02 / (0x10000 / math.sqrt(3.0))
"""Factor for the centered sum of four 16-bit numbers. It gives a standard deviation of 0.02 and a maximum of 0.069."""


class DummyWeights(WeightSource):
    """Weights without files. The mean is 0 for matrices and biases and 1 for norms; the standard deviation is 0.02."""

    def __init__(
        self,
        stored: str,
        storage: torch.dtype,
        compute: torch.dtype | None,
        device: torch.device,
        pack: Pack = lmi_kernels.pack,
    ) -> None:
        """Round numbers as for a checkpoint: first to `stored`, then to `storage`, then to `compute`.

        stored: `dtype` of config.json. An unknown dtype counts as float32.
        """
        super().__init__(storage, compute, device, pack)
        self._stored = _DTYPES.get(stored, torch.float32)

    def rows(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, ...], exact: bool = False
    ) -> torch.Tensor:
        if len(names) == 1:
            if any(shard.stop > shape[0] for shard in shards):
                raise BadCheckpoint(f"tensor {names[0]!r} has only {shape[0]} rows")
            names = [names[0]] * len(shards)
        out = self._empty((sum(shard.size for shard in shards), *shape[1:]))
        width = math.prod(shape[1:])
        start = 0
        for name, shard in zip(names, shards, strict=True):
            part = out[start : start + shard.size]
            self._fill(part.view(1, -1), name, shard.start * width, 0)
            start += shard.size
        return out.float() if exact else out

    def stacked_columns(self, names: Sequence[str], shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        if shard.stop > shape[1]:
            raise BadCheckpoint(f"tensor {names[0]!r} has only {shape[1]} columns")
        out = self._empty((len(names), shape[0], shard.size))
        for name, part in zip(names, out, strict=True):
            self._fill(part, name, shard.start, shape[1])
        return out

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = self._result_dtype(self._stored, len(shape))
        out = torch.empty(shape, dtype=dtype, device=self.device)
        self.owned_bytes += out.numel() * self._stored.itemsize
        return out

    def _fill(self, out: torch.Tensor, name: str, first: int, stride: int) -> None:
        """Fill `out`, a view [rows, columns]. Row r holds the tensor's numbers from index `first + r * stride` on."""
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        mean = 1.0 if _scales(name) else 0.0
        block = _GPU_BLOCK if self.device.type == "cuda" else _CPU_BLOCK
        num_rows, num_columns = out.shape
        width = max(1, min(num_columns, block))
        for row in range(0, num_rows, block // width):
            for column in range(0, num_columns, width):
                part = out[row : row + block // width, column : column + width]
                begin = first + row * stride + column
                values = _numbers(part.shape, seed, begin, stride, mean, self.device)
                part.copy_(values.to(self._stored).to(self._storage))


def _numbers(
    shape: torch.Size, seed: int, first: int, stride: int, mean: float, device: torch.device
) -> torch.Tensor:
    """Return the tensor's numbers `first + row * stride + column`: [rows, columns], fp32."""
    rows, columns = (torch.arange(length, device=device) for length in shape)
    # SplitMix64 in int64. Overflow wraps, so the bits are the same as in uint64.
    z = (rows[:, None] * stride + columns + (first + 1)) * _signed(_GOLDEN) + _signed(seed)
    for shift, factor in _ROUNDS:
        z.bitwise_xor_(_logical_shift(z, shift)).mul_(_signed(factor))
    z.bitwise_xor_(_logical_shift(z, _LAST_SHIFT))
    # Add the 16-bit parts in pairs; the two sums are 32 bits apart. The upper half of the product is their sum.
    total = (z & _HALVES).add_((z >> 16).bitwise_and_(_HALVES)).mul_(_SUM_OF_TWO).bitwise_right_shift_(32)
    return total.sub_(_MIDDLE).float().mul_(_STEP).add_(mean)


def _logical_shift(z: torch.Tensor, count: int) -> torch.Tensor:
    """Return z >> count as an unsigned shift."""
    return (z >> count).bitwise_and_((1 << (64 - count)) - 1)


def _scales(name: str) -> bool:
    """Return whether the tensor is the weight of a norm, which has a mean of 1."""
    *_, owner, kind = ("", *name.split("."))
    return kind == "weight" and ("norm" in owner or owner.startswith("ln_"))


def _signed(value: int) -> int:
    """Return the same 64 bits as a signed number."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
