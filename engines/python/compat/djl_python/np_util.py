"""Encode and decode arrays: DJL's NDList and numpy's formats. Object arrays are rejected: reading them would run code.

An NDList is big-endian. It starts with the number of arrays. Each array consists of the text `NDAR`, the version (1 to
3), from version 2 on a flag and an optional name, the sparse format, the type, the shape, from version 3 on the byte
order of the data, the length of the data, and the data. A text is preceded by its length. A shape is followed by its
layout, two bytes for each dimension.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
from collections.abc import Sequence
from typing import Any

_MAGIC = "NDAR"
_VERSION = 3
_MAX_DIMENSIONS = 32
_MAX_UNPACKED_BYTES = 1 << 30
_TYPES = (
    *("float16", "float32", "float64", "boolean", "complex64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_NUMPY_NAMES = {"boolean": "bool"}
_DJL_NAMES = {numpy: djl for djl, numpy in _NUMPY_NAMES.items()}


def from_nd_list(encoded: bytes | bytearray) -> list[Any]:
    """Return the arrays of an NDList, `.npy` or `.npz`. Raises `ValueError` for other or truncated data."""
    import numpy

    if encoded[:2] == b"PK":
        return _from_npz(encoded)
    if encoded[:6] == b"\x93NUMPY":
        return [numpy.load(io.BytesIO(encoded), allow_pickle=False)]
    reader = _Reader(encoded)
    arrays = [reader.array() for _ in range(reader.number("i"))]
    if reader.offset != len(encoded):
        raise ValueError(f"the NDList has {len(encoded) - reader.offset} bytes after its last array")
    return arrays


def to_nd_list(np_list: Any) -> bytes:
    """Write an array, or a list or tuple of arrays, as an NDList. Raises `ValueError` if DJL lacks the type."""
    import numpy

    arrays = [numpy.asarray(one) for one in _as_list(np_list)]
    return struct.pack(">i", len(arrays)) + b"".join(_encode(array) for array in arrays)


def to_npy(value: Any) -> bytes:
    """Write an array as `.npy`."""
    import numpy

    file = io.BytesIO()
    numpy.save(file, numpy.asarray(value), allow_pickle=False)
    return file.getvalue()


def to_npz(values: Any) -> bytes:
    """Write an array, or a list or tuple of arrays, as `.npz` with the names `arr_0` and so on."""
    import numpy

    file = io.BytesIO()
    numpy.savez(file, *(numpy.asarray(one) for one in _as_list(values)))
    return file.getvalue()


class _Reader:
    """Reads an NDList from start to end. All methods raise `ValueError` if the data is malformed or truncated."""

    def __init__(self, encoded: bytes | bytearray) -> None:
        self._encoded = encoded
        self.offset = 0

    def array(self) -> Any:
        """Read the next array. Returns a copy in the machine's byte order."""
        import numpy

        if (magic := self._text()) != _MAGIC:
            raise ValueError(
                f"the body is not an NDList: an array starts with {magic!r} instead of {_MAGIC!r}"
            )
        version = self.number("i")
        if not 1 <= version <= _VERSION:
            raise ValueError(f"the NDList has version {version}; supported: 1 to {_VERSION}")
        if version > 1 and self.number("b"):
            self._text()  # the array's name
        self._text()  # the sparse format
        written = self._text().lower()
        name = _DJL_NAMES.get(written, written)
        if name not in _TYPES:
            raise ValueError(f"the NDList has an array of type {name}; supported: {', '.join(_TYPES)}")
        shape = self._shape()
        order = self._bytes(1) if version == _VERSION else b"<"
        kind = numpy.dtype(_NUMPY_NAMES.get(name, name))
        size = self.number("i")
        if size != math.prod(shape) * kind.itemsize:
            raise ValueError(f"the NDList has {size} bytes for an array of type {name} and shape {shape}")
        stored = kind.newbyteorder(">" if order == b">" else "<")
        return numpy.ndarray(shape, stored, self._bytes(size)).astype(kind)

    def number(self, code: str) -> int:
        """Read a non-negative integer. code: its format in `struct`."""
        found: int = struct.unpack(f">{code}", self._bytes(struct.calcsize(f">{code}")))[0]
        if found < 0:
            raise ValueError(f"the NDList has the size {found}")
        return found

    def _shape(self) -> tuple[int, ...]:
        count = self.number("i")
        if count > _MAX_DIMENSIONS:
            raise ValueError(
                f"the NDList has an array of {count} dimensions; allowed: at most {_MAX_DIMENSIONS}"
            )
        shape = tuple(self.number("q") for _ in range(count))
        self._bytes(2 * self.number("i"))  # the layout
        return shape

    def _text(self) -> str:
        return self._bytes(self.number("h")).decode("utf-8")

    def _bytes(self, size: int) -> bytes:
        if size > len(self._encoded) - self.offset:
            raise ValueError(f"the NDList ends after {len(self._encoded)} bytes, within an array")
        self.offset += size
        return bytes(memoryview(self._encoded)[self.offset - size : self.offset])


def _encode(array: Any) -> bytes:
    name = _DJL_NAMES.get(array.dtype.name, array.dtype.name)
    if name not in _TYPES:
        raise ValueError(f"an NDList cannot hold arrays of type {array.dtype.name}")
    data = array.tobytes()
    return b"".join(
        (
            *(_text(_MAGIC), struct.pack(">ib", _VERSION, 0), _text("default"), _text(name.upper())),
            struct.pack(f">i{array.ndim}q", array.ndim, *array.shape),
            *(struct.pack(">i", array.ndim), "?".encode("utf-16-be") * array.ndim),
            *(_byte_order(array), struct.pack(">i", len(data)), data),
        )
    )


def _byte_order(array: Any) -> bytes:
    native = "<" if sys.byteorder == "little" else ">"
    return (array.dtype.byteorder if array.dtype.byteorder in "<>" else native).encode()


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _from_npz(encoded: bytes | bytearray) -> list[Any]:
    import numpy

    try:
        with zipfile.ZipFile(io.BytesIO(encoded)) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"the body is not an .npz file: {error}") from None
    if size > _MAX_UNPACKED_BYTES:
        raise ValueError(f"the .npz unpacks to {size} bytes; allowed: at most {_MAX_UNPACKED_BYTES}")
    with numpy.load(io.BytesIO(encoded), allow_pickle=False) as loaded:
        return [loaded[name] for name in loaded.files]
