"""What the kernels of norms share: the row that a program normalises."""

from __future__ import annotations

from lmi_kernels._triton import jit, tl


@jit
def load_row(x_ptr, residual_ptr, first, columns, inside, ADDS: tl.constexpr):
    """Return the row of x that begins at `first`, or (ADDS) its sum with the residual's, which it replaces there."""
    x = tl.load(x_ptr + first + columns, mask=inside, other=0.0)
    if ADDS:
        # The sum is rounded before it is normalised: what later layers read is what was normalised.
        x += tl.load(residual_ptr + first + columns, mask=inside, other=0.0)
        tl.store(residual_ptr + first + columns, x, mask=inside)
    return x
