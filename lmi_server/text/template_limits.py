"""Limits on the CPU time and memory for rendering a chat template.

A template comes with the model and blocks its web process while it renders. Loops, macros and filters check the time.
The process's address space is limited while a template renders, which bounds the memory of each operation. Operations
that Python cannot interrupt (powers of large numbers, filters with huge arguments, sorting a huge list) are rejected.
"""

from __future__ import annotations

import functools
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
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
_MAX_REPEATED_ITEMS = 1_000_000
_MAX_REPEATED_CHARS = 10_000_000
_MAX_SORTED_ITEMS = 100_000
_MAX_TEXT_CHARS = 1_000_000
_ITEMS_PER_CHECK = 8
"""Number of items of a filter's value between two checks of the time, which cost a system call."""
_SORTING = frozenset({"groupby", "sort"})
_ITERATING = _SORTING | {"batch", "join", "list", "map", "max", "min", "slice", "sum", "unique"}
_ITERATING |= {"reject", "rejectattr", "select", "selectattr"}
"""Filters that only iterate over their value, so they give the same result for a generator."""
_SLOW_FOR_TEXT = frozenset({"striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap"})
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
        self.filters = {name: self._limited(name, one) for name, one in self.filters.items()}

    def limited_template(self, source: str) -> jinja2.Template:
        """Compile a template, with a time check in each loop and macro. Raises `jinja2.TemplateSyntaxError`."""
        tree = self.parse(source)
        node: Any
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            # No variable of the template can shadow an attribute of the environment.
            call = nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:  # a loop of its own, without the body
                node.test = nodes.And(nodes.Not(call), node.test)
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
                self.check_time()
            except MemoryError:
                raise TemplateLimitError("it uses too much memory") from None
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def check_time(self) -> None:
        """Check the time limit. Called by loops, macros, filters and calls. Raises `TemplateLimitError`."""
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(f"it takes longer than {MAX_RENDER_SECONDS:g} s")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.check_time()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateLimitError("it computes with numbers that are too large")
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        return super().call_binop(context, operator, left, right)

    def _limited(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter to reject large arguments, and to check the time while it reads its value."""
        place = 1 if hasattr(filter_, "jinja_pass_arg") else 0
        iterates, slow_for_text = name in _ITERATING, name in _SLOW_FOR_TEXT

        @functools.wraps(filter_)
        def limited(*args: Any, **named: Any) -> Any:
            value, arguments = args[place], args[place + 1 :]
            for argument in (*arguments, *named.values()):
                if isinstance(argument, int) and abs(argument) > _MAX_ARGUMENT:
                    raise TemplateLimitError(f"a filter argument is too large (got {argument})")
            if name == "sum":
                _check_start(*arguments, **named)
            if iterates or slow_for_text:
                self.check_time()
            if slow_for_text and isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
                raise TemplateLimitError(f"the filter {name} gets more than {_MAX_TEXT_CHARS} characters")
            if iterates and isinstance(value, Iterable) and value:
                value = self._checked_items(name, value)
            return filter_(*args[:place], value, *arguments, **named)

        return limited

    def _checked_items(self, filter_name: str, items: Iterable[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number % _ITEMS_PER_CHECK == _ITEMS_PER_CHECK - 1:
                self.check_time()
            if number >= _MAX_SORTED_ITEMS and filter_name in _SORTING:
                raise TemplateLimitError(f"the filter {filter_name} gets more than {_MAX_SORTED_ITEMS} items")
            yield item


def _check_repetition(sequence: Any, count: Any) -> None:
    """Raise `TemplateLimitError` if `sequence * count` is too long."""
    if isinstance(sequence, str | list | tuple) and isinstance(count, int):
        most = _MAX_REPEATED_CHARS if isinstance(sequence, str) else _MAX_REPEATED_ITEMS
        if len(sequence) * count > most:
            raise TemplateLimitError("it uses too much memory")


def _check_start(attribute: Any = None, start: Any = 0) -> None:
    """Check the arguments of `sum`: adding up lists copies the result for each item."""
    if not isinstance(start, int | float):
        raise TemplateLimitError("the filter sum has a start that is not a number")
