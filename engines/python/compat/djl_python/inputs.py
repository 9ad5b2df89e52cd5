"""The input of a handler: the properties and the content of one request or of a batch."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from . import np_util
from .pair_list import PairList

_DATA = "data"


class Properties(dict[str, str]):
    """Properties by name. Names in another case are found too: web servers change the case of headers."""

    def __missing__(self, key: str) -> str:
        name = self._name(key)
        if name is None:
            raise KeyError(key)
        return dict.__getitem__(self, name)

    def __contains__(self, key: object) -> bool:
        return self._name(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        name = self._name(key)
        return default if name is None else dict.__getitem__(self, name)

    def _name(self, key: object) -> str | None:
        if isinstance(key, str) and not dict.__contains__(self, key):
            return next((name for name in self if name.lower() == key.lower()), None)
        return key if isinstance(key, str) else None


class Input:
    """One request or a batch. In the call that loads a worker, there is no content, and the options are properties."""

    def __init__(self) -> None:
        self.request_id = ""
        self.function_name = "handle"
        self.properties: dict[str, str] = Properties()
        """HTTP headers, custom attributes and the like. In a batch, names have prefixes such as `batch_000.`."""
        self.content = PairList()
        """Parts of the body by name. A body without parts is named `data`."""

    def get_function_name(self) -> str:
        return self.function_name

    def get_request_id(self) -> str:
        return self.request_id

    def get_properties(self) -> dict[str, str]:
        return self.properties

    def get_property(self, key: str) -> str | None:
        """Return a property by its case-insensitive name; None if it is missing."""
        found: str | None = Properties(self.properties).get(key)
        return found

    def get_content(self) -> PairList:
        return self.content

    def is_empty(self) -> bool:
        """Return whether this is the call that loads the worker."""
        return self.content.is_empty()

    def contains_key(self, key: str) -> bool:
        return self.content.contains(key)

    def is_batch(self) -> bool:
        return "batch_size" in self.properties

    def get_batch_size(self) -> int:
        return int(self.properties.get("batch_size", 1))

    def get_batches(self) -> list[Input]:
        """Return the requests of a batch as separate inputs, or `[self]` if this is not a batch."""
        if not self.is_batch():
            return [self]
        batches = [Input() for _ in range(self.get_batch_size())]
        for name, value in self.properties.items():
            index, key = _split(name)
            if index is not None:
                batches[index].properties[key] = value
        for name, value in self.content:
            index, key = _split(name)
            if index is not None:
                batches[index].content.add(key, value)
        for batch in batches:
            batch.request_id = batch.properties.get("requestId", "")
        return batches

    def get_as_bytes(self, key: str | None = None) -> Any:
        """Return a part. The key defaults to `data`, or else to the first part. Without any content, return None.

        Raises `KeyError` if there is no such part.
        """
        if self.content.is_empty():
            return None
        if not key:
            return self.content.get(_DATA) if self.content.contains(_DATA) else self.content.value_at(0)
        if not self.content.contains(key):
            raise KeyError(key)
        return self.content.get(key)

    def get_as_string(self, key: str | None = None) -> str:
        return _text(self.get_as_bytes(key))

    def get_as_json(self, key: str | None = None) -> Any:
        """Return a part parsed as JSON. Raises `ValueError` if it is not valid JSON."""
        return json.loads(self.get_as_bytes(key))

    def get_as_csv(self, key: str | None = None) -> list[dict[str, str]]:
        """Return the rows of a CSV part as dictionaries. The first line has the names."""
        return list(csv.DictReader(io.StringIO(self.get_as_string(key))))

    def get_as_image(self, key: str | None = None) -> Any:
        """Return a `PIL.Image` in the mode of the file. Raises `ImportError` without Pillow."""
        from PIL import Image

        return Image.open(io.BytesIO(self.get_as_bytes(key)))

    def get_as_numpy(self, key: str | None = None) -> list[Any]:
        """Return the arrays of a part: an NDList, or one of numpy's formats (`.npy`, `.npz`)."""
        return np_util.from_nd_list(self.get_as_bytes(key))

    get_as_npz = get_as_numpy

    def get_data(self, key: str | None = None) -> Any:
        """Return a part decoded by its content type: JSON, text, image or arrays, else bytes."""
        kind = (self.get_property("Content-Type") or "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return self.get_as_json(key)
        if kind.startswith("text/"):
            return self.get_as_string(key)
        if kind.startswith("image/"):
            return self.get_as_image(key)
        if kind.startswith("tensor/") or kind == "application/x-npy":
            return self.get_as_numpy(key)
        return self.get_as_bytes(key)


def _split(name: str) -> tuple[int | None, str]:
    """Split `batch_003.data` into index and name; the index is None for any other name."""
    prefix, _, key = name.partition(".")
    number = prefix.removeprefix("batch_")
    return (int(number), key) if number != prefix and number.isdecimal() else (None, name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8")
