"""What stands for a tensor while a model is recorded as a program: see `recorder.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lmi_kernels.cpu.recorder import Recorder


class NotRecorded(Exception):
    """A model does with its rows what no native operation does."""


class Rows(torch.Tensor):
    """[number of rows of a step, width], without numbers. The operations of `lmi_kernels` write themselves into the
    recorder; of torch's only `+` does, all others raise `NotRecorded`."""

    recorder: Recorder

    @staticmethod
    def make(recorder: Recorder, width: int) -> Rows:
        rows = torch.empty(0, width, device="meta").as_subclass(Rows)
        rows.recorder = recorder
        return rows

    @property
    def width(self) -> int:
        return int(self.shape[-1])

    def __add__(self, other: Any) -> Rows:
        if not isinstance(other, Rows):
            raise NotRecorded("the sum of rows and something else")
        return self.recorder.add(self, other)

    __radd__ = __add__
    __iadd__ = __add__  # rows never change

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.__name__ == "__get__":
            return super().__torch_function__(func, types, args, kwargs)
        raise NotRecorded(f"torch's {func.__name__}")
