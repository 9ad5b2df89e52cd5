"""Which variants of Triton's kernels are asked for, without a GPU and without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from lmi_kernels import _triton, tuning
from tests.support.absent_gpu import AbsentGpu


class Variant(NamedTuple):
    """What Triton compiles once: a kernel with what it takes for constant, and how it knows the other arguments."""

    kernel: str
    specialization: str
    options: str


class _ZeroedMemory(TorchFunctionMode):
    """What kernels would have written is 0, a valid token, position, slot and block."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in _MAKERS else made


_MAKERS = (torch.empty, torch.empty_like, torch.Tensor.new_empty)


@contextmanager
def recorded_variants(tuned_for: str) -> Iterator[set[Variant]]:
    """Engines on a CPU take the GPU's path, and launch nothing: each launch's variant is put into the set.

    tuned_for: the device whose launch parameters are taken.
    """
    found: set[Variant] = set()

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        _, _, _, _, bind = self.device_caches[0]
        _, specialization, options = bind(*args, **kwargs, debug=False)
        found.add(Variant(self.fn.__name__, str(specialization), str(sorted(options.items()))))

    with ExitStack() as stack:
        stack.enter_context(patch.object(driver, "_active", AbsentGpu()))
        stack.enter_context(patch.object(JITFunction, "run", record))
        stack.enter_context(patch.object(_triton, "INTERPRETED", True))
        stack.enter_context(patch.object(tuning, "tables", lambda device: (tuned_for, tuning.DEFAULT)))
        stack.enter_context(patch.object(tuning, "num_multiprocessors", lambda device: 132))
        stack.enter_context(_ZeroedMemory())
        yield found
