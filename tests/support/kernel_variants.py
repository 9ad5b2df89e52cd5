"""Record the variants of Triton kernels that engines launch, without a GPU and without running kernels."""

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
    """The unit that Triton compiles: a kernel with its constants and the specialization of its other arguments."""

    kernel: str
    specialization: str
    options: str


class _ZeroedMemory(TorchFunctionMode):
    """Zeroes new tensors in place of the kernels: 0 is a valid token, position, slot and block."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in _MAKERS else result


_MAKERS = (torch.empty, torch.empty_like, torch.Tensor.new_empty)


@contextmanager
def recorded_variants(tuned_for: str) -> Iterator[set[Variant]]:
    """Let engines on a CPU take the GPU's path, and record the variant of each launch instead of launching.

    tuned_for: the device to take launch parameters from.
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
