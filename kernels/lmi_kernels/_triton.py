"""The only import of Triton. Without it, kernels can be defined but not launched.

Triton takes a third of a second to import, so it is not imported where nothing can launch a kernel: with a CPU build of
torch, unless Triton interprets kernels (TRITON_INTERPRET), or is imported already, to compile for GPUs elsewhere.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

try:
    if not (
        torch.version.cuda or torch.version.hip or "triton" in sys.modules or "TRITON_INTERPRET" in os.environ
    ):
        raise ImportError("no kernel can be launched")
    import triton
    import triton.language as tl

    jit: Any = triton.jit
    INTERPRETED: bool = triton.knobs.runtime.interpret
    """Whether Triton interprets kernels on the CPU (TRITON_INTERPRET=1), which tests use."""
except ImportError:

    class _Missing:
        """Placeholder for a Triton module or kernel. Every attribute is a placeholder too, and launching one raises."""

        def __getattr__(self, name: str) -> _Missing:
            return self

        def __getitem__(self, grid: Any) -> Any:
            raise RuntimeError("Triton is not installed, or torch is a CPU build")

    triton = tl = _Missing()

    def jit(function: Any = None, **options: Any) -> Any:
        return jit if function is None else _Missing()

    INTERPRETED = False

__all__ = ["INTERPRETED", "cdiv", "jit", "next_power_of_2", "runs_triton", "tl", "triton", "uses_triton"]


def runs_triton(device: torch.device) -> bool:
    """Return whether operations on this device are Triton kernels. False only on a CPU without Triton's interpreter."""
    return device.type != "cpu" or INTERPRETED


def uses_triton(tensor: torch.Tensor) -> bool:
    """Return whether an operation on this tensor launches its Triton kernel."""
    return runs_triton(tensor.device)


def cdiv(total: int, part: int) -> int:
    return -(-total // part)


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`, which must be at least 1."""
    return 1 << (number - 1).bit_length()
