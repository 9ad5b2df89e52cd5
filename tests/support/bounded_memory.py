"""Bounds checks for Triton's interpreter, which reads and writes through bare addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from lmi_kernels._triton import INTERPRETED

Extent = tuple[int, int]
"""First byte address, and the one past the last."""


class OutOfBoundsError(Exception):
    """A kernel would have accessed memory outside its tensors."""


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Check that launched kernels access only their tensors. Masked lanes access nothing. No checks run on a GPU.

    Raises:
        InterpreterError: before an access out of bounds, with the text of an OutOfBoundsError.
    """
    if not INTERPRETED:
        yield
        return
    from triton.runtime import interpreter

    extents: list[Extent] = []
    take_arguments = interpreter.GridExecutor._init_args_hst

    def taking_arguments(self: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        taken = take_arguments(self, args, kwargs)
        extents[:] = _extents_of((*taken[0], *taken[1].values()))
        return taken

    builder = interpreter.InterpreterBuilder
    with ExitStack() as stack:
        stack.enter_context(patch.object(interpreter.GridExecutor, "_init_args_hst", taking_arguments))
        for name, select in _ACCESSES.items():
            guarded = _guarded(getattr(builder, name), select, extents)
            stack.enter_context(patch.object(builder, name, guarded))
        yield


_ACCESSES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "create_masked_load": lambda pointers, mask, *_: (pointers, mask),
    "create_masked_store": lambda pointers, _, mask, *__: (pointers, mask),
    "create_atomic_rmw": lambda _, pointers, __, mask, *___: (pointers, mask),
    "create_atomic_cas": lambda pointers, *_: (pointers, None),
}
"""For each access function of the interpreter, a function that selects pointers and mask from its arguments."""


def _guarded(
    access: Callable[..., Any], select: Callable[..., tuple[Any, Any]], extents: list[Extent]
) -> Callable[..., Any]:
    def guarded(self: Any, *arguments: Any) -> Any:
        _assert_inside(access.__name__, *select(*arguments), extents)
        return access(self, *arguments)

    return guarded


def _assert_inside(access: str, pointers: Any, mask: Any, extents: list[Extent]) -> None:
    """Check that the access stays within a single tensor, whichever it is."""
    addresses = pointers.data
    if mask is not None:
        addresses = addresses[np.broadcast_to(mask.data != 0, addresses.shape)]
    if not addresses.size:
        return
    first, last = int(addresses.min()), int(addresses.max())
    end = last + pointers.get_element_ty().primitive_bitwidth // 8
    if not any(start <= first and end <= stop for start, stop in extents):
        raise OutOfBoundsError(
            f"{access} of {len(addresses)} elements from {first:#x} to {end:#x}: outside of all tensors"
        )


def _extents_of(arguments: tuple[Any, ...]) -> list[Extent]:
    return [_extent(each) for each in arguments if isinstance(each, torch.Tensor) and each.numel()]


def _extent(tensor: torch.Tensor) -> Extent:
    """The extent of a tensor. Strides are never negative in torch."""
    elements = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()
