"""Find the handler in a user's file: a function, decorated functions, or those of the SageMaker inference toolkit."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from djl_python import Input, Output

from engines.python.handlers.formatters import Formatters
from engines.python.handlers.stages import Stages


class Handler(Protocol):
    """A handler as workers call it."""

    @property
    def takes_batches(self) -> bool:
        """Whether it may be called with several requests at once."""

    def __call__(self, inputs: Input) -> Any:
        """Return an `Output` or None. May raise anything."""


class FunctionHandler:
    """A function such as `handle(inputs)`. A coroutine runs to its end; an asynchronous generator is a stream."""

    takes_batches = True

    def __init__(self, function: Callable[[Input], Any]) -> None:
        self._function = function
        self.runner = asyncio.Runner() if inspect.iscoroutinefunction(function) else None

    def __call__(self, inputs: Input) -> Any:
        result = self._function(inputs)
        if self.runner is None:
            return result
        result = self.runner.run(result)
        if not hasattr(result, "__aiter__"):
            return result
        outputs = self._iterate(result)
        first = next(outputs, None)
        return first and first.add_stream_content(map(_body, chain([first], outputs)), None)

    def _iterate(self, results: AsyncIterator[Output]) -> Iterator[Output]:
        iterator = aiter(results)
        loop = self.runner.get_loop() if self.runner is not None else asyncio.new_event_loop()
        while True:
            try:
                yield loop.run_until_complete(anext(iterator))
            except StopAsyncIteration:
                return


def _body(output: Output) -> bytes:
    return b"".join(value for _, value in output.content)


def load_module(file: Path, folder: Path) -> ModuleType:
    """Run the user's file as a module. It can import from its own folder and from the model's.

    Raises: whatever its code raises.
    """
    for path in dict.fromkeys((str(folder), str(file.parent))):
        sys.path.insert(0, path)
    name = file.stem if file.stem not in sys.modules else f"handler_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def find_handler(module: ModuleType, function: str, properties: dict[str, str]) -> Handler:
    """Return the function of that name, else what decorated or toolkit functions make together.

    function: empty for formatters of text that the server generates.

    Raises `ImportError`: the module has none of them.
    """
    if not function:
        return Formatters.of(module, properties)
    found = getattr(module, function, None)
    if callable(found):
        return FunctionHandler(found)
    return Stages.of(module, function, properties)
