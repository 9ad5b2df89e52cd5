"""Limits on the CPU time and memory for rendering a chat template.

A template comes with the model and blocks its web process while it renders. Loops and macros check the time. The
process's address space is limited while a template renders, which bounds the memory of each operation. Operations that
Python cannot interrupt (powers of large numbers, filters with huge arguments) are rejected.
"""

from __future__ import annotations

import functools
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDER_SECONDS = 2.0
"""Maximum CPU time of one rendering. Long chats take a few hundredths of this."""
_EXTRA_BYTES = 1 << 30
_MAX_BITS = 4096
_MAX_ARGUMENT = 1_000_000
_address_space = threading.Lock()


class TemplateLimitError(jinja2.TemplateError):
    """The template takes too much time or memory."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox for templates that are rendered within `limits()`."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._deadline = 0.0
        del self.globals["lipsum"]
        self.filters = {name: _reject_large_arguments(one) for name, one in self.filters.items()}

    def limited_template(self, source: str) -> jinja2.Template:
        """Compile a template, with a time check in each loop and macro. Raises `jinja2.TemplateSyntaxError`."""
        tree = self.parse(source)
        node: Any
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            # No variable of the template can shadow an attribute of the environment.
            call = nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return self.from_string(tree)

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Limit what is rendered in the `with` block. One thread at a time: the address space is per process.

        Raises `TemplateLimitError`.
        """
        with _address_space:
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + _EXTRA_BYTES
            limit = min(one for one in (most, soft, hard) if one != resource.RLIM_INFINITY)
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            self._deadline = time.thread_time() + MAX_RENDER_SECONDS
            try:
                yield
            except MemoryError:
                raise TemplateLimitError("it uses too much memory") from None
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def check_time(self) -> None:
        """Check the time limit. Called by templates in every loop iteration. Raises `TemplateLimitError`."""
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(f"it takes longer than {MAX_RENDER_SECONDS:g} s")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateLimitError("it computes with numbers that are too large")
        return super().call_binop(context, operator, left, right)


def _reject_large_arguments(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter to reject large numbers as arguments. The filtered value may be large."""
    num_before = 2 if hasattr(filter_, "jinja_pass_arg") else 1

    @functools.wraps(filter_)
    def limited(*args: Any, **named: Any) -> Any:
        for argument in (*args[num_before:], *named.values()):
            if isinstance(argument, int) and abs(argument) > _MAX_ARGUMENT:
                raise TemplateLimitError(f"a filter argument is too large (got {argument})")
        return filter_(*args, **named)

    return limited
