"""y = x @ w.T + b, in fp32 on a CPU and in the weights' own dtype on a GPU.

On a CPU native kernels read weights as they are stored and widen them in registers. Without native kernels, weights
that fp16 holds exactly are kept as packed fp16 (FBGEMM), others in fp32: torch would emulate products of bf16 and fp16
on a CPU, tens of times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lmi_kernels._triton import runs_triton
from lmi_kernels.cpu.eager import multiply
from lmi_kernels.cpu.library import load
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.elementwise.activate import Activation, native_activation
from lmi_kernels.elementwise.activate_and_mul import activate_and_mul


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight as `linear` and `gated_linear` take it: native or packed (CPU), or dense."""

    packed: Any | None
    dense: torch.Tensor | None
    bias: torch.Tensor | None
    native: NativeWeight | None = None
    gated: Activation | None = None
    """The activation of its gates, if it has gates."""


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gated: Activation | None = None,
    storage: Storage | None = None,
) -> LinearWeight:
    """Make a weight ready for `linear`, or (gated) for `gated_linear`.

    Args:
        weight: [out_features, in_features], any float dtype, any device.
        bias: [out_features] or None.
        gated: the activation of gates, which are the first half of the rows; the second is what they let through.
            None: there are no gates.
        storage: how native kernels store it; None: as it is, bf16 in the layout for AMX where there is AMX.

    Raises:
        ValueError: there is no activation of this name; or there is a storage, but there are no native kernels.
    """
    gate = None if gated is None else native_activation(gated)
    if weight.device.type != "cpu":
        return LinearWeight(None, weight, bias, None, gated)
    library = None if runs_triton(weight.device) else load()
    if library is not None:
        if storage is None and weight.dtype is torch.bfloat16 and library.instructions == "amx":
            storage = Storage.BF16_PAIRS
        return LinearWeight(None, None, None, NativeWeight(library, weight, bias, gate, storage), gated)
    if storage is not None:
        raise ValueError("only native kernels have storages of their own")
    dense = weight.float()
    fp32_bias = None if bias is None else bias.float()
    if "fbgemm" in torch.backends.quantized.supported_engines and _exact_in_fp16(dense):
        packed = torch.ops.quantized.linear_prepack_fp16(dense, fp32_bias)
        return LinearWeight(packed, None, None, None, gated)
    return LinearWeight(None, dense, fp32_bias, None, gated)


def linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """Return x @ w.T + b. x: [num_rows, in_features] -> [num_rows, out_features], in x's dtype; sums are fp32."""
    if weight.native is not None:
        return x.recorder.linear(x, weight.native) if isinstance(x, Rows) else multiply(x, weight.native)
    if weight.packed is not None:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, weight.packed)
        return y
    if weight.dense is None:
        raise ValueError("a LinearWeight holds a native, a packed or a dense weight")
    return F.linear(x, weight.dense, weight.bias)


def gated_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """Return activation(gate(x)) * up(x) (Shazeer 2020, arXiv:2002.05202).

    Args:
        x: [num_rows, in_features].
        weight: packed as gated, [2 * middle, in_features].

    Returns: [num_rows, middle], in x's dtype.

    Raises:
        ValueError: the weight is not packed as gated.
    """
    if weight.gated is None:
        raise ValueError("a gated linear takes a weight that is packed as gated")
    y = linear(x, weight)
    return y if weight.native is not None else activate_and_mul(y, weight.gated)


def _exact_in_fp16(weight: torch.Tensor) -> bool:
    # In blocks of rows: copies of a whole embedding would double the peak memory of loading.
    blocks = (weight[start : start + 8192] for start in range(0, len(weight), 8192))
    return all(torch.equal(block.half().float(), block) for block in blocks)
