"""The output of a handler: a status, headers, and one body for each request or a stream of chunks."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import np_util
from .pair_list import PairList

HANDLER_FAILED = "invoke handler failure"


def encode_json(value: Any, indent: int | None = None) -> bytes:
    """Encode a value as JSON; arrays become lists. Raises `ValueError` for NaN and infinities, which JSON lacks."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return str(value)  # as in LMI
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, and tensors on a CPU
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _default_stream_output_formatter(item: Any) -> bytes:
    """Encode one item of a stream as a line of JSON."""
    return encode_json({"outputs": item}) + b"\n"


class Record(bytes):
    """The body of a record of an asynchronous handler. `Output.add` takes on its status."""

    code: int | None = None

    @classmethod
    def of(cls, data: str | dict[str, Any], error: str | None = None, code: int | None = None) -> Record:
        """Return a record with the data; with the error instead, if there is one and a status or no data."""
        if error and (code or not data):
            data = {"error": error, "code": code or 424}
        record = cls(data.encode() if isinstance(data, str) else encode_json(data))
        record.code = code
        return record


class Output:
    """The response to one request or to a batch."""

    # Handlers written for LMI use these names.
    _default_stream_output_formatter = staticmethod(_default_stream_output_formatter)
    _encode_json = staticmethod(encode_json)

    @staticmethod
    def binary_encode(data: Mapping[str, Any]) -> bytes:
        """Return the record of an asynchronous handler with this `data`, `error` and `code`."""
        code = data.get("code")
        return Record.of(data.get("data", ""), data.get("error"), None if code is None else int(code))

    def __init__(self, code: int = 200, message: str = "OK") -> None:
        self.code = code
        self.message = message
        self.properties: dict[str, str] = {}
        """Response headers."""
        self.content = PairList()
        self.stream_content: Iterable[Any] | None = None
        self.stream_output_formatter: Callable[[Any], bytes | bytearray | str] | None = None
        self.finalize_function: Callable[..., object] | None = None
        self.finalize_args: tuple[Any, ...] = ()

    def set_code(self, code: int) -> Output:
        self.code = code
        return self

    def set_message(self, message: str) -> Output:
        self.message = message
        return self

    def add_property(self, key: str, val: str) -> Output:
        self.properties[key] = val
        return self

    def get_properties(self) -> dict[str, str]:
        return self.properties

    def get_property(self, key: str) -> str | None:
        """Return a property by its case-insensitive name; None if it is missing."""
        wanted = key.lower()
        return next((value for name, value in self.properties.items() if name.lower() == wanted), None)

    def get_content(self) -> PairList:
        return self.content

    def add(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add a part: text and bytes unchanged, everything else as JSON.

        batch_index: index of the request in the batch; alternatively, `key` is the key of that request's content.
        """
        if isinstance(value, str):
            data = value.encode()
        elif isinstance(value, bytes | bytearray):
            data = bytes(value)
            if isinstance(value, Record) and value.code:
                self.code = value.code
        else:
            data = encode_json(value, indent=2)
        if batch_index is not None:
            key = f"batch_{batch_index:03d}.{key or 'data'}"
        self.content.add("data" if key is None else key, data)
        return self

    def add_as_json(self, val: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        return self.add(encode_json(val, indent=2), key, batch_index)

    def add_as_numpy(self, np_list: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add an array, or a list of arrays, as an NDList."""
        return self.add(np_util.to_nd_list(np_list), key, batch_index)

    def add_as_npz(self, np_list: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        return self.add(np_util.to_npz(np_list), key, batch_index)

    def error(self, error: object, code: int = 424, message: str = HANDLER_FAILED) -> Output:
        """Turn this output into an error with a JSON body."""
        self.code = code
        self.message = message
        self.content = PairList()
        self.stream_content = None
        body = {"code": code, "message": message, "error": str(error)}
        return self.add_property("Content-Type", "application/json").add_as_json(body)

    def add_stream_content(
        self,
        stream_content: Iterable[Any],
        output_formatter: Callable[[Any], bytes | bytearray | str] | None = _default_stream_output_formatter,
    ) -> Output:
        """Respond with a stream.

        output_formatter: encodes one item; None: text and bytes are unchanged, everything else becomes JSON.
        """
        self.stream_content = stream_content
        self.stream_output_formatter = output_formatter
        return self

    def finalize(self, finalize_function: Callable[..., object], *args: Any) -> Output:
        """Set a function to call after the response has been sent."""
        self.finalize_function = finalize_function
        self.finalize_args = args
        return self

    def execute_finalize(self) -> Any:
        return self.finalize_function(*self.finalize_args) if self.finalize_function is not None else None

    def __str__(self) -> str:
        sizes = {key: len(value) for key, value in self.content}
        return f"Output(code={self.code}, message={self.message!r}, parts={sizes})"
