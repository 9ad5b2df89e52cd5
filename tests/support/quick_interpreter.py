"""Patch Triton's interpreter to run in half the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from lmi_kernels._triton import INTERPRETED


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Replace the language's functions once per launch. The interpreter needlessly repeats that for each call of a
    kernel's own functions."""
    if not INTERPRETED:
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    sees_all = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    replace = interpreter._patch_lang

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    with (
        patch.object(interpreter, "_patch_lang", lambda function: replace(sees_all)),
        patch.object(interpreter.InterpretedFunction, "__call__", call),
    ):
        yield
