"""Find the handler in a user's file: a function, decorated functions, or SageMaker inference toolkit functions."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from djl_python import Input

from engines.python.handlers.formatters import Formatters
from engines.python.handlers.stages import Stages


class AsyncHandler:
    """A coroutine function such as `async def handle(inputs)`, or an asynchronous generator."""

    def __init__(self, function: Callable[[Input], Any]) -> None:
        self._function = function

    async def __call__(self, inputs: Input) -> Any:
        """Return an `Output`, None, or an asynchronous generator of outputs. May raise anything."""
        result = self._function(inputs)
        return await result if inspect.isawaitable(result) else result


def load_module(file: Path, folder: Path, name: str = "") -> ModuleType:
    """Run the user's file as a module. The file can import from its own folder and from the model's.

    name: dotted name of the file in the model's folder, so that it can import its package; empty: it has none.

    Raises: any error of the user's code; `ImportError` if the file is not a Python file.
    """
    folders = dict.fromkeys((folder, file.parent))
    for path in folders:
        sys.path.insert(0, str(path))
    if "." in name and _is_module(name, file):
        return importlib.import_module(name)
    # A package of the same name, such as `model` beside model.py, keeps its name.
    is_taken = file.stem in sys.modules or any(
        (path / file.stem / "__init__.py").exists() for path in folders
    )
    name = f"handler_{file.stem}" if is_taken else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _is_module(name: str, file: Path) -> bool:
    """Return whether `name` imports the file. Its package may have the name of another module, such as `code`."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return False
        raise
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file.resolve()


def find_handler(module: ModuleType, function: str, properties: dict[str, str]) -> Callable[[Input], Any]:
    """Return the handler: the named function, or else the module's decorated or toolkit functions together.

    function: empty if the module only has formatters for the server's own text generation.

    Raises `ImportError` if the module has none of these.
    """
    if not function:
        return Formatters.of(module, properties)
    found: Callable[[Input], Any] | None = getattr(module, function, None)
    if not callable(found):
        return Stages.of(module, function, properties)
    is_async = inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found)
    # With async_mode, as in LMI, a function may return something to await.
    if is_async or properties.get("async_mode", "").strip().lower() == "true":
        return AsyncHandler(found)
    return found
