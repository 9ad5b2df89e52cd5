"""Arrays in and out of handlers: DJL's NDList against bytes built from its specification, and numpy formats."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from typing import Any

import numpy
import pytest
from djl_python import Output, np_util
from djl_python.encode_decode import decode, encode
from hypothesis import given
from hypothesis import strategies as st

from engines.python.handlers.stages import Stages
from tests.engines.python.handlers.line import make_input

ARRAYS = [
    numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
    numpy.array(7, dtype=numpy.int64),
    numpy.zeros((0, 4), dtype=numpy.uint8),
    numpy.array([True, False]),
    numpy.array([1.5, -2.5], dtype=numpy.float16),
]


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def nd_list(
    array: Any, version: int = 3, name: str | None = None, kind: str = "FLOAT32", order: str = "<"
) -> bytes:
    """Serialize a list of one array as DJL's NDSerializer does, with the data in the byte order of the array."""
    encoded = struct.pack(">i", 1) + _text("NDAR") + struct.pack(">i", version)
    if version > 1:
        encoded += b"\x00" if name is None else b"\x01" + _text(name)
    encoded += _text("DENSE") + _text(kind)
    encoded += struct.pack(f">i{array.ndim}q", array.ndim, *array.shape)
    encoded += struct.pack(">i", array.ndim) + struct.pack(">h", ord("?")) * array.ndim
    if version > 2:
        encoded += order.encode()
    data = array.tobytes()
    return encoded + struct.pack(">i", len(data)) + data


def equal_arrays(decoded: Any, expected: Any) -> bool:
    return bool(
        decoded.dtype == expected.dtype and decoded.shape == expected.shape and (decoded == expected).all()
    )


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", [None, "weights"])
def test_an_nd_list_of_djl_is_decoded(version: int, name: str | None) -> None:
    array = ARRAYS[0]
    (decoded,) = make_input(nd_list(array, version, name), "tensor/ndlist").get_data()
    assert equal_arrays(decoded, array)
    decoded[0, 0] = 5  # must be writable


def test_both_byte_orders_and_both_boolean_type_names_are_decoded() -> None:
    big = ARRAYS[0].astype(">f4")
    (decoded,) = np_util.from_nd_list(nd_list(big, order=">"))
    assert equal_arrays(decoded, ARRAYS[0])
    for kind in ("BOOLEAN", "BOOL"):
        (decoded,) = np_util.from_nd_list(nd_list(ARRAYS[3], kind=kind))
        assert equal_arrays(decoded, ARRAYS[3])


def test_an_array_is_encoded_as_djl_does() -> None:
    expected = nd_list(ARRAYS[0]).replace(_text("DENSE"), _text("default"))
    assert np_util.to_nd_list(ARRAYS[0]) == expected
    assert Output().add_as_numpy(ARRAYS[0]).content.value_at(0) == expected


def test_arrays_of_many_types_round_trip() -> None:
    decoded = np_util.from_nd_list(np_util.to_nd_list([*ARRAYS, ARRAYS[0].astype(">f4").T]))
    assert all(equal_arrays(*pair) for pair in zip(decoded, [*ARRAYS, ARRAYS[0].T], strict=True))
    assert np_util.from_nd_list(np_util.to_nd_list([])) == []
    with pytest.raises(ValueError, match="cannot hold arrays of type str"):
        np_util.to_nd_list(numpy.array(["text"]))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "ends after 0 bytes"),
        (struct.pack(">i", -1), "has the size -1"),
        (struct.pack(">i", 1) + _text("JSON"), "starts with 'JSON'"),
        (nd_list(ARRAYS[0], version=4), "version 4; supported: 1 to 3"),
        (nd_list(ARRAYS[0], kind="STRING"), "type string; supported: float16"),
        (nd_list(ARRAYS[0], kind="FLOAT64"), "has 24 bytes for an array of type float64"),
        (nd_list(ARRAYS[0]) + b"more", "4 bytes after its last array"),
        (nd_list(ARRAYS[0]).replace(struct.pack(">i", 2), struct.pack(">i", 99), 1), "99 dimensions"),
    ],
)
def test_an_invalid_nd_list_is_rejected(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(make_input(body, "tensor/ndlist"), "tensor/ndlist")


@given(position=st.integers(0, 200), change=st.integers(1, 255))
def test_a_changed_or_truncated_nd_list_raises_value_error_or_decodes(position: int, change: int) -> None:
    whole = np_util.to_nd_list(ARRAYS[:2])
    position %= len(whole)
    with pytest.raises(ValueError, match="NDList"):
        np_util.from_nd_list(whole[:position])
    changed = bytearray(whole)
    changed[position] ^= change
    with contextlib.suppress(ValueError):
        assert sum(array.nbytes for array in np_util.from_nd_list(changed)) <= len(whole)


@pytest.mark.parametrize("kind", ["tensor/ndlist", "tensor/npz", "tensor/npy", "application/x-npy"])
def test_arrays_are_returned_in_the_content_type_of_the_request(kind: str) -> None:
    stages = Stages({"prediction_handler": lambda data, model: ARRAYS[0]}, {"model_dir": "/m"})
    output = stages(make_input(encode(Output(), ARRAYS[1], kind).content.value_at(0), kind))
    assert output is not None
    assert output.properties["Content-Type"] == kind
    (decoded,) = decode(make_input(output.content.value_at(0), kind), kind)["inputs"]
    assert equal_arrays(decoded, ARRAYS[0])


def test_arrays_of_objects_are_rejected() -> None:
    file = io.BytesIO()
    numpy.save(file, numpy.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        make_input(file.getvalue(), "").get_as_numpy()


def test_an_archive_that_unpacks_to_too_much_is_rejected() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", bytes(16))
        archive.getinfo("a.npy").file_size = 65 << 24  # the size in the archive directory
    with pytest.raises(ValueError, match="unpacks to 1090519040 bytes; allowed: at most 1073741824"):
        make_input(file.getvalue(), "").get_as_npz()
    with pytest.raises(ValueError, match=r"not an .npz file"):
        make_input(b"PK no archive", "").get_as_npz()
