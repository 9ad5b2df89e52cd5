"""Model folders like those of published families: the same files and keys, with tiny vocabularies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.tokenizer_families import byte_level, other_kinds, pieces

FAMILIES: dict[str, Callable[[Path], None]] = {
    name: save
    for module in (pieces, byte_level, other_kinds)
    for name, save in vars(module).items()
    if getattr(save, "__module__", "") == module.__name__ and not name.startswith("_")
}
"""Functions that write a model folder, by the name of the family: all public ones of these modules."""
