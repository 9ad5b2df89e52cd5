"""Compile Triton kernels as their launchers launch them, without launching them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.runtime.jit import JITFunction

from lmi_kernels import tuning


@contextmanager
def compile_only(
    tables: Sequence[str], num_multiprocessors: int, compiled: Callable[[Any, dict[str, Any]], None]
) -> Iterator[None]:
    """Compile kernels instead of launching them. Operations may be called with `meta` tensors.

    Args:
        tables: names of the tables with launch parameters, in the form that `tuning.tables` returns.
        num_multiprocessors: of the GPU.
        compiled: called for each launch with the compiled kernel and the keyword arguments.
    """
    run = JITFunction.run

    def instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled(kernel, kwargs)
        return kernel

    with (
        patch.object(JITFunction, "run", instead),
        patch.object(tuning, "tables", lambda device: tuple(tables)),
        patch.object(tuning, "num_multiprocessors", lambda device: num_multiprocessors),
    ):
        yield
