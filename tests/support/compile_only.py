"""Triton's kernels compiled as their launchers launch them, and not launched."""

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
    """Operations may be called with `meta` tensors inside.

    Args:
        tables: whose launch parameters are taken, as `tuning.tables` gives them.
        num_multiprocessors: of the GPU.
        compiled: is given each launch's kernel, which is compiled, and its keyword arguments.
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
