"""Shared part of the norm kernels: load the row that a program normalizes."""

from __future__ import annotations

from lmi_kernels._triton import jit, tl


@jit
def load_row(x_ptr, residual_ptr, first, columns, inside, ADDS: tl.constexpr):
    """Return the row of x that begins at `first`. With ADDS, add it to the row of the residual and return the sum."""
    x = tl.load(x_ptr + first + columns, mask=inside, other=0.0)
    if ADDS:
        # The sum is rounded before it is normalized, so that the norm sees the same numbers as later layers.
        x += tl.load(residual_ptr + first + columns, mask=inside, other=0.0)
        tl.store(residual_ptr + first + columns, x, mask=inside)
    return x
