"""Names of classes that are imported on access: listing the names imports nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any


class Registry(Mapping[str, Any]):
    """A read-only mapping from names to attributes of modules, given as `"module:attribute"`."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = dict(targets)

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self._targets[name].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)
