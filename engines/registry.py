"""Names of classes that are imported on access: listing the names imports nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any


def load(target: str) -> Any:
    """Import `"module:attribute"`."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


class Registry(Mapping[str, Any]):
    """A read-only mapping from names to attributes of modules, given as `"module:attribute"`."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = dict(targets)

    def __getitem__(self, name: str) -> Any:
        return load(self._targets[name])

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)
