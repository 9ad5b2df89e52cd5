"""Reading the headers of safetensors files, which must be complete."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from safetensors import SafetensorError

from engines.models.weight_files import read_header
from tests.support.examples import examples
from tests.support.model_folders import safetensors_bytes

_COMPLETE = safetensors_bytes(["a", "b"], 8192)


def is_complete(path: Path) -> bool:
    try:
        read_header(path)
    except SafetensorError:
        return False
    return True


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers") / "model.safetensors"


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(_COMPLETE)))
@example(len(_COMPLETE))
def test_only_the_whole_file_is_accepted(file: Path, length: int) -> None:
    file.write_bytes(_COMPLETE[:length])
    assert is_complete(file) == (length == len(_COMPLETE))


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff\xff",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32"}}',
        b"[" * 5000,
        b'{"a": ["F32", [25], [0, 100]]}',
    ],
)
def test_invalid_headers_are_rejected(file: Path, header: bytes) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + random.Random(1).randbytes(100))
    assert not is_complete(file)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        (f"[{'9, ' * 1_000_000}9]", "[0, 2]"),
        (f"[0, {2**64}]", "[0, 0]"),
        ("[]", f"[0, {'9' * 4300}]"),
        ("{}", "[0, 2]"),
    ],
    ids=["a million dimensions", "size", "4300 digits", "object"],
)
def test_hostile_headers_are_rejected(file: Path, shape: str, offsets: str) -> None:
    header = f'{{"a": {{"dtype": "BF16", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    assert not is_complete(file)


def test_the_tensors_are_listed_with_their_place(file: Path) -> None:
    file.write_bytes(_COMPLETE)
    header = len(_COMPLETE) - 8192
    assert [(tensor.name, math.prod(tensor.shape), tensor.offset) for tensor in read_header(file)] == [
        ("a", 2048, header),
        ("b", 2048, header + 4096),
    ]
