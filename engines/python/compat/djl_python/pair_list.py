"""An ordered list of keys and values in which a key may occur more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class PairList:
    """Keys and values in two parallel lists, which handlers may read and modify."""

    def __init__(
        self,
        keys: list[str] | None = None,
        values: list[Any] | None = None,
        pair_list: Iterable[tuple[str, Any]] | None = None,
        pair_map: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a list from keys and values, from pairs or from a mapping. Raises `ValueError` for unequal lengths."""
        self.keys = list(keys or ())
        self.values = list(values or ())
        if len(self.keys) != len(self.values):
            raise ValueError(f"{len(self.keys)} keys for {len(self.values)} values")
        for key, value in (*(pair_list or ()), *(pair_map or {}).items()):
            self.keys.append(key)
            self.values.append(value)

    def add(
        self,
        key: str | None = None,
        value: Any = None,
        index: int | None = None,
        pair: tuple[str, Any] | None = None,
    ) -> None:
        """Add a key and a value, or a pair, at the end or at an index. A value of None is ignored."""
        if pair is not None:
            key, value = pair
        if value is None:
            return
        place = len(self.keys) if index is None else index
        self.keys.insert(place, "" if key is None else key)
        self.values.insert(place, value)

    def add_all(self, other: PairList | Mapping[str, Any]) -> None:
        """Append the pairs of a list or a mapping."""
        for key, value in other if isinstance(other, PairList) else other.items():
            self.keys.append(key)
            self.values.append(value)

    def is_empty(self) -> bool:
        return not self.keys

    def size(self) -> int:
        return len(self.keys)

    def get_keys(self) -> list[str]:
        return self.keys

    def get_values(self) -> list[Any]:
        return self.values

    def key_at(self, index: int) -> str:
        return self.keys[index]

    def value_at(self, index: int) -> Any:
        return self.values[index]

    def contains(self, key: str) -> bool:
        return key in self.keys

    def get(self, key: str | None = None, index: int | None = None) -> Any:
        """Return the first value of a key, or None if it is missing; without a key, the value at an index.

        Raises `IndexError` if there is no such index.
        """
        if key is None:
            return self.values[0 if index is None else index]
        return next((value for own, value in self if own == key), None)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return zip(self.keys, self.values, strict=True)

    def __contains__(self, key: object) -> bool:
        return key in self.keys
