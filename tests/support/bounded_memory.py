"""Triton's interpreter reads and writes through bare addresses; here it keeps to the tensors that a kernel got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from lmi_kernels._triton import INTERPRETED

Extent = tuple[int, int]
"""First address and the one past the last, in bytes."""


class OutOfBoundsError(Exception):
    """A kernel would have touched memory that belongs to none of its tensors."""


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Accesses outside of the launched kernel's tensors raise, before they happen; masked lanes access nothing. On a
    GPU nothing is checked.

    Raises:
        InterpreterError: with the text of an OutOfBoundsError, from the launch.
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
        for name, which in _ACCESSES.items():
            guarded = _guarded(getattr(builder, name), which, extents)
            stack.enter_context(patch.object(builder, name, guarded))
        yield


_ACCESSES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "create_masked_load": lambda pointers, mask, *_: (pointers, mask),
    "create_masked_store": lambda pointers, _, mask, *__: (pointers, mask),
    "create_atomic_rmw": lambda _, pointers, __, mask, *___: (pointers, mask),
    "create_atomic_cas": lambda pointers, *_: (pointers, None),
}
"""Of each access that the interpreter has, the pointers and the mask among its arguments."""


def _guarded(
    access: Callable[..., Any], which: Callable[..., tuple[Any, Any]], extents: list[Extent]
) -> Callable[..., Any]:
    def guarded(self: Any, *arguments: Any) -> Any:
        _assert_inside(access.__name__, *which(*arguments), extents)
        return access(self, *arguments)

    return guarded


def _assert_inside(access: str, pointers: Any, mask: Any, extents: list[Extent]) -> None:
    """An access goes to one tensor; which of them is not told."""
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
    """Strides are never negative in torch."""
    elements = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()
