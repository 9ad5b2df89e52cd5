"""Modules of LMI's `djl_python` that are not provided. Importing one raises an error that names the alternative."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from engines.python.handlers.djl_modules import import_error


class UnsupportedModules(MetaPathFinder):
    """Raises an explanatory `ImportError` for modules that no other finder has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if error := import_error(fullname):
            raise ImportError(error)
        return None
