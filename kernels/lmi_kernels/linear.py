"""y = x @ w.T + b, in fp32 arithmetic on a CPU and in the weights' own dtype on a GPU.

On a CPU, weights that survive the round trip through fp16 exactly are kept as packed fp16 and widened in
registers (FBGEMM): the product is that of fp32 weights, at half the memory traffic. bf16 and fp16 are never
multiplied on a CPU: there is no hardware path on most, and emulation is tens of times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight made ready for `linear`: either packed (CPU) or dense."""

    packed: Any | None
    dense: torch.Tensor | None
    bias: torch.Tensor | None


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearWeight:
    """Make a weight ready for `linear`.

    Args:
        weight: [out_features, in_features], any float dtype, any device.
        bias: [out_features] or None.
    """
    if weight.device.type != "cpu":
        return LinearWeight(None, weight, bias)
    dense = weight.float()
    fp32_bias = None if bias is None else bias.float()
    if "fbgemm" in torch.backends.quantized.supported_engines and _exact_in_fp16(dense):
        return LinearWeight(torch.ops.quantized.linear_prepack_fp16(dense, fp32_bias), None, None)
    return LinearWeight(None, dense, fp32_bias)


def linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """x: [num_rows, in_features] -> [num_rows, out_features], in x's dtype; sums are fp32."""
    if weight.packed is not None:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, weight.packed)
        return y
    if weight.dense is None:
        raise ValueError("a LinearWeight holds either a packed or a dense weight")
    return F.linear(x, weight.dense, weight.bias)


def batch_invariant_rows(num_rows: int, dense: bool = False) -> int:
    """The least number of rows from `num_rows` on at which a row's product does not depend on its neighbours (CPU).

    Packed (FBGEMM walks rows in tiles of up to 6 and treats some tails by another summation order), measured: rows
    are bit-equal at all counts but 1, 2, 7, 14 and, from 31 on, those with remainder 1 or 2 modulo 6; at most 2 rows
    more. `dense`: of fp32 weights too. MKL gives 1 to 3 rows, with several threads also the last rows of a few more,
    to other kernels: at multiples of 4 all are bit-equal. One dense row then takes twice its time, more rows at most
    a tenth more; packed rows never more than a tenth.
    """
    step = 4 if dense else 1
    rows = -(-num_rows // step) * step
    while rows in (1, 2, 7, 14) or (rows >= 31 and rows % 6 in (1, 2)):
        rows += step
    return rows


def _exact_in_fp16(weight: torch.Tensor) -> bool:
    # Row blocks: a whole copy of an embedding in two precisions would double the peak memory of loading.
    blocks = (weight[start : start + 8192] for start in range(0, len(weight), 8192))
    return all(torch.equal(block.half().float(), block) for block in blocks)
