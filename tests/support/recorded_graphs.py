"""In place of CUDA graphs where there is no GPU: what was recorded is done again, into the memory that it gave then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engines.mpi.runner.decode_graphs import DecodeOutputs

_LAUNCHES = {
    *("add", "add_", "copy_", "embedding", "index_copy_", "index_select", "linear", "to"),
    *("empty", "empty_like", "new_empty"),
    *("select", "slice", "unbind", "view"),
    "set_",  # Triton's interpreter
}
"""What a graph may hold beside kernels of our own: nothing that waits for the device, whose shape depends on what a
tensor holds, or that brings numbers from the host. Add to it with care."""


class NotCapturableError(Exception):
    """A CUDA graph would not hold this, or do something else when it is replayed."""


class EagerGraphs:
    """A `Record`. Counts how often something was replayed."""

    def __init__(self) -> None:
        self.num_replays = 0

    def __call__(self, decode: Callable[[], DecodeOutputs]) -> tuple[Callable[[], None], DecodeOutputs]:
        first = _Watch()
        with first:
            outputs = decode()

        def replay() -> None:
            self.num_replays += 1
            again = _Watch()
            with again:
                for old, new in zip(_tensors(outputs), _tensors(decode()), strict=True):
                    old.copy_(new)
            # A graph reads and writes what was there when it was recorded, wherever that is now.
            if not again.outside <= first.outside | _addresses(_tensors(outputs)):
                raise NotCapturableError("other memory is read or written than when the graph was recorded")

        return replay, outputs


class _Watch(TorchDispatchMode):
    """Sees every operation, those by which kernels get their arguments included."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[int] = set()
        self.outside: set[int] = set()
        """Addresses of memory that is taken, and was not made here."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in _LAUNCHES:
            raise NotCapturableError(f"{func} in what a graph is to hold")
        taken = _addresses(tree_leaves((args, dict(kwargs or {}))))
        self.outside |= taken - self._made
        made = func(*args, **(kwargs or {}))
        self._made |= _addresses(tree_leaves(made)) - self.outside
        return made


def _tensors(outputs: DecodeOutputs) -> Iterator[torch.Tensor]:
    for field in fields(outputs):
        value = getattr(outputs, field.name)
        if value is not None:
            yield value


def _addresses(values: Any) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in values if isinstance(each, torch.Tensor)} - {0}
