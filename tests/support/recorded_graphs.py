"""A substitute for CUDA graphs without a GPU: replay runs the function again and writes to the recorded outputs."""

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
"""Operations that a graph may hold besides our own kernels. None of them waits for the device, copies from the host, or
has a shape that depends on values. Add to this with care."""


class NotCapturableError(Exception):
    """A CUDA graph could not hold this operation, or would behave differently when it is replayed."""


class EagerGraphs:
    """A `Record` that counts replays."""

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
            # A graph reads and writes the addresses that were used when it was recorded.
            if not again.outside <= first.outside | _addresses(_tensors(outputs)):
                raise NotCapturableError("a replay uses other memory than the recording")

        return replay, outputs


class _Watch(TorchDispatchMode):
    """Observes every operation, including those that pass arguments to kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._allocated: set[int] = set()
        self.outside: set[int] = set()
        """Addresses of memory that is used, but was not allocated here."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in _LAUNCHES:
            raise NotCapturableError(f"{func} is not allowed in a graph")
        taken = _addresses(tree_leaves((args, dict(kwargs or {}))))
        self.outside |= taken - self._allocated
        result = func(*args, **(kwargs or {}))
        self._allocated |= _addresses(tree_leaves(result)) - self.outside
        return result


def _tensors(outputs: DecodeOutputs) -> Iterator[torch.Tensor]:
    for field in fields(outputs):
        value = getattr(outputs, field.name)
        if value is not None:
            yield value


def _addresses(values: Any) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in values if isinstance(each, torch.Tensor)} - {0}
