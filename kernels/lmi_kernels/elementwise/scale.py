"""Scaling and soft caps of rows. Computed by torch, except in recorded programs."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.cpu.structs import Function


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x * factor. x: [num_rows, width] -> the same shape and dtype."""
    return x.recorder.elementwise(x, Function.SCALE, factor) if isinstance(x, Rows) else x * factor


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2). x: [num_rows, width] -> the same shape and
    dtype."""
    if isinstance(x, Rows):
        return x.recorder.elementwise(x, Function.SOFTCAP, cap)
    return torch.tanh(x / cap) * cap
