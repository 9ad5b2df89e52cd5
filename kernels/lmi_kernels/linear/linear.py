"""Linear layers: y = x @ w.T + b, in fp32 on a CPU and in the weights' dtype on a GPU.

On a CPU, native kernels read weights as they are stored. They widen them in registers; with AMX or int8 weights, they
convert the rows of x to bf16 parts or to integers instead. Without native kernels, weights that fp16 represents exactly
are packed as fp16 (FBGEMM), and others are kept in fp32, because torch emulates bf16 and fp16 matrix products on a CPU
and is tens of times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lmi_kernels._triton import runs_triton
from lmi_kernels.cpu.eager import multiply
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.cpu.structs import Function, Storage
from lmi_kernels.cpu.team import shared_team
from lmi_kernels.cpu.weight import NativeWeight, blocks_of
from lmi_kernels.elementwise.activate import Activation
from lmi_kernels.elementwise.activate_and_mul import activate_and_mul


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight for `linear` and `gated_linear`: native or packed (CPU), or dense."""

    packed: Any | None
    dense: torch.Tensor | None
    bias: torch.Tensor | None
    native: NativeWeight | None = None
    gated: Activation | None = None
    """Activation of the gates; None: the weight has no gates."""


def pack_copies(device: torch.device) -> bool:
    """Return whether `pack` copies weights of this device, and never returns the memory that it is given."""
    return device.type == "cpu" and not runs_triton(device) and shared_team() is not None


def pack(
    weight: torch.Tensor | Sequence[torch.Tensor],
    bias: torch.Tensor | None = None,
    gated: Activation | None = None,
    storage: Storage | None = None,
) -> LinearWeight:
    """Prepare a weight for `linear`, or with `gated` for `gated_linear`.

    Args:
        weight: [out_features, in_features], any float dtype, any device. A sequence is stacked.
        bias: [out_features] or None.
        gated: activation of the gates. The first half of the rows are gates, the second half is the up projection.
            None: no gates.
        storage: storage format of native kernels, see `NativeWeight`; None: the weight's dtype.

    Raises:
        ValueError: stacked weights do not match, or `storage` is given but there are no native kernels.
    """
    gate = None if gated is None else Function[gated.upper()]
    blocks = blocks_of(weight)
    device = blocks[0].device
    team = shared_team() if pack_copies(device) else None
    if team is not None:
        return LinearWeight(None, None, None, NativeWeight(team, blocks, bias, gate, storage), gated)
    dense = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    if device.type != "cpu":
        return LinearWeight(None, dense, bias, None, gated)
    if storage is not None:
        raise ValueError(f"storage: requires native kernels (got {storage.name})")
    dense = dense.float()
    fp32_bias = None if bias is None else bias.float()
    if "fbgemm" in torch.backends.quantized.supported_engines and _exact_in_fp16(dense):
        packed = torch.ops.quantized.linear_prepack_fp16(dense, fp32_bias)
        return LinearWeight(packed, None, None, None, gated)
    return LinearWeight(None, dense, fp32_bias, None, gated)


def linear(x: torch.Tensor, weight: LinearWeight, add_to: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ w.T + b, accumulated in fp32.

    Args:
        x: [num_rows, in_features].
        add_to: [num_rows, out_features], of x's dtype, overwritten with the sum of itself and the result.

    Returns: [num_rows, out_features] in x's dtype, or `add_to`.
    """
    if add_to is not None:
        if weight.dense is not None and weight.bias is None:
            return add_to.addmm_(x, weight.dense.t())  # one kernel for product and sum
        add_to += linear(x, weight)
        return add_to
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
        weight: packed as gated, [2 * intermediate, in_features].

    Returns: [num_rows, intermediate], in x's dtype.

    Raises:
        ValueError: the weight is not packed as gated.
    """
    if weight.gated is None:
        raise ValueError("weight: must be packed as gated")
    y = linear(x, weight)
    return y if weight.native is not None else activate_and_mul(y, weight.gated)


def _exact_in_fp16(weight: torch.Tensor) -> bool:
    # In blocks of rows, because copies of a whole embedding would double the peak memory of loading.
    blocks = (weight[start : start + 8192] for start in range(0, len(weight), 8192))
    return all(torch.equal(block.half().float(), block) for block in blocks)
