"""Limits on the CPU time and memory for rendering a chat template.

A template comes with the model and blocks its web process while it renders. Loops, macros and filters check the time.
In the main thread a timer also interrupts long single operations, such as writing a huge list as JSON.
The process's address space is limited while a template renders, which bounds the memory of each operation. The limit
leaves room for threads that tokenize texts meanwhile, because their library aborts the process if it gets no memory.
Operations that Python cannot interrupt (powers of large numbers, filters with huge arguments, sorting a huge list) are
rejected. Comparing huge nested lists is not: gunicorn replaces a web process that it blocks for too long.
"""

from __future__ import annotations

import functools
import gc
import math
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDER_SECONDS = 2.0
"""Maximum CPU time of rendering a short chat. Most chats take hundredths of this."""
_SECONDS_PER_MESSAGE = 0.01
"""Further CPU time. Templates such as Gemma 4's read all earlier messages again for each message."""
_SECONDS_PER_CHAR = 5e-6
"""Further CPU time. Templates such as Llama 3.2 Vision's loop over the characters of a text as if they were parts."""
_MAX_SECONDS = 6.0
"""Maximum CPU time of any rendering. Meanwhile the web process answers no other request."""
_TIMER_SECONDS = 0.1
"""Interval between two signals of the timer once the time is over."""
_AGAIN_SECONDS = 0.5
"""CPU time after which a signal stops a rendering again. Python ignores an error that is raised in a finalizer."""
_TICKS_PER_CHECK = 32
"""Number of iterations of loops between two checks of the time, which cost a system call."""
_EXTRA_BYTES = 1 << 30
_TOKENIZER_BYTES_PER_CHAR = 1024
"""More than tokenizing takes: up to 413 bytes for Chinese text of several tokens per character, and the token ids."""
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
_CHECKED_OPERANDS: Mapping[type[nodes.Node], str] = {
    nodes.Compare: "expr",  # without a call, Python would not handle the timer's signal
    nodes.Filter: "node",
    nodes.Mod: "left",
}
"""Fields of the first operand, before which the time is checked."""
_SLOW_FOR_TEXT = frozenset({"striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap"})
_address_space = threading.Lock()
_tokenizer_bytes = 0
"""Address space that threads may need to tokenize texts. Changed by the main thread only."""
_Result = TypeVar("_Result")


class TemplateLimitError(jinja2.TemplateError):
    """The template takes too much time or memory. The message continues a sentence about the template."""


@contextmanager
def tokenizes_in_thread(num_chars: int) -> Iterator[None]:
    """Let a thread tokenize texts of up to `num_chars` characters, one at a time, while templates render."""
    global _tokenizer_bytes
    num_bytes = num_chars * _TOKENIZER_BYTES_PER_CHAR
    _tokenizer_bytes += num_bytes
    try:
        yield
    finally:
        _tokenizer_bytes -= num_bytes


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox for templates that are rendered by `run`."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, optimized=False)  # the optimizer takes long for nested expressions
        self._deadline = math.inf
        """CPU time of the thread at which the rendering is stopped."""
        self._too_slow = ""
        """Message of the error for a rendering that takes too long."""
        self._ticks = 0
        del self.globals["lipsum"]
        self.filters = {name: self._limited(name, one) for name, one in self.filters.items()}

    def limited_template(self, source: str) -> jinja2.Template:
        """Compile a template, with a time check in each loop, macro, comparison, filter and `%`.

        A filter or `%` of constants is therefore not computed here, where no limit applies.

        Raises `jinja2.TemplateSyntaxError`.
        """
        tree = self.parse(source)
        node: Any
        kinds: tuple[type[nodes.Node], ...] = (nodes.For, nodes.Macro, nodes.CallBlock, *_CHECKED_OPERANDS)
        for node in tree.find_all(kinds):
            # No variable of the template can shadow an attribute of the environment.
            tick = nodes.EnvironmentAttribute("tick")
            if operand := _CHECKED_OPERANDS.get(type(node)):
                if (value := getattr(node, operand)) is not None:  # None: a filter of a block
                    setattr(node, operand, nodes.Or(tick, value))
                continue
            node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:  # a loop of its own, without the body
                node.test = nodes.And(nodes.Not(tick), node.test)
        return self.from_string(tree)

    def run(self, work: Callable[[], _Result], num_messages: int, num_chars: int) -> _Result:
        """Call `work`, which renders a template, within the limits for a chat of this size.

        One thread at a time: the address space is per process. Raises `TemplateLimitError`.
        """
        seconds = _max_seconds(num_messages, num_chars)
        with _address_space:
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + _EXTRA_BYTES + _tokenizer_bytes
            limit = min(one for one in (most, soft, hard) if one != resource.RLIM_INFINITY)
            count = "1 message" if num_messages == 1 else f"{num_messages} messages"
            self._too_slow = f"takes more than {seconds:.2g} s for {count}; accepted: a shorter chat"
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            collects = gc.isenabled()
            gc.disable()  # an error that a signal raises in it would be ignored
            try:
                self._deadline = time.thread_time() + seconds
                self._start_timer(seconds)
                result = work()
                self.check_time()
            except MemoryError:
                raise TemplateLimitError("uses too much memory") from None
            finally:
                # First, and without a call: from here on a signal of the timer does nothing.
                self._deadline = math.inf
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
                if collects:
                    gc.enable()
        return result

    def _start_timer(self, seconds: float) -> None:
        """Have a signal check the time. It also interrupts most operations of the standard library that are in C.

        The timer counts the CPU time of all threads, so the signal repeats until the rendering is over its limit.
        """
        try:
            # Stays, because a late signal would end the process without a handler.
            signal.signal(signal.SIGVTALRM, self._on_timer)
        except ValueError:  # only the main thread can have one
            return
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _TIMER_SECONDS)

    def _on_timer(self, *_: object) -> None:
        now = time.thread_time()
        if now > self._deadline:
            self._deadline = now + _AGAIN_SECONDS
            raise TemplateLimitError(self._too_slow)

    @property
    def tick(self) -> None:
        """Check the time in some cases. Compiled into loops, macros and expressions. Raises `TemplateLimitError`."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_CHECK == 0:
            self.check_time()

    def check_time(self) -> None:
        """Check the time limit. Called by loops, macros, filters and calls. Raises `TemplateLimitError`."""
        if time.thread_time() > self._deadline:
            self._deadline = math.inf  # a signal must not interrupt Jinja's handling of this error
            raise TemplateLimitError(self._too_slow)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.check_time()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateLimitError("computes with numbers that are too large")
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
                    raise TemplateLimitError(f"gives a filter an argument that is too large (got {argument})")
            if name == "sum":
                _check_start(*arguments, **named)
            if iterates or slow_for_text:
                self.check_time()
            if slow_for_text and isinstance(value, str) and len(value) > _MAX_TEXT_CHARS:
                raise TemplateLimitError(f"gives the filter {name} more than {_MAX_TEXT_CHARS} characters")
            if iterates and isinstance(value, Iterable) and value:
                value = self._checked_items(name, value)
            return filter_(*args[:place], value, *arguments, **named)

        return limited

    def _checked_items(self, filter_name: str, items: Iterable[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number % _ITEMS_PER_CHECK == _ITEMS_PER_CHECK - 1:
                self.check_time()
            if number >= _MAX_SORTED_ITEMS and filter_name in _SORTING:
                raise TemplateLimitError(
                    f"gives the filter {filter_name} more than {_MAX_SORTED_ITEMS} items"
                )
            yield item


def _max_seconds(num_messages: int, num_chars: int) -> float:
    seconds = MAX_RENDER_SECONDS + num_messages * _SECONDS_PER_MESSAGE + num_chars * _SECONDS_PER_CHAR
    return min(seconds, _MAX_SECONDS)


def _check_repetition(sequence: Any, count: Any) -> None:
    """Raise `TemplateLimitError` if `sequence * count` is too long."""
    if isinstance(sequence, str | list | tuple) and isinstance(count, int):
        most = _MAX_REPEATED_CHARS if isinstance(sequence, str) else _MAX_REPEATED_ITEMS
        if len(sequence) * count > most:
            raise TemplateLimitError("uses too much memory")


def _check_start(attribute: Any = None, start: Any = 0) -> None:
    """Check the arguments of `sum`: adding up lists copies the result for each item."""
    if not isinstance(start, int | float):
        raise TemplateLimitError("gives the filter sum a start that is not a number")
