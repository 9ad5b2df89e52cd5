"""Whether a file is whole, against what the safetensors library says of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from container.models.files import safetensors_headers
from tests.support.examples import examples
from tests.support.model_folders import safetensors_bytes

_WHOLE = safetensors_bytes(["a", "b"], 8192)


def is_whole(path: Path) -> bool:
    try:
        safetensors_headers.require_complete(path)
    except safetensors_headers.DamagedFile:
        return False
    return True


def library_says(path: Path) -> str:
    """Why the library refuses it; empty when it does not."""
    try:
        with safe_open(path, framework="numpy"):
            return ""
    except (SafetensorError, OSError) as error:
        return str(error)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers") / "model.safetensors"


def test_a_whole_file_is_whole(file: Path) -> None:
    file.write_bytes(_WHOLE)
    assert library_says(file) == ""
    assert is_whole(file)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(_WHOLE) - 1))
def test_no_beginning_of_a_file_is_whole(file: Path, length: int) -> None:
    file.write_bytes(_WHOLE[:length])
    assert library_says(file)
    assert not is_whole(file)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_header_is_seen_as_the_library_sees_it(file: Path, place: int, change: int) -> None:
    content = bytearray(_WHOLE)
    content[place] ^= change
    file.write_bytes(content)
    why = library_says(file)
    if "unknown variant" not in why:  # a dtype that it does not know: whoever loads the tensors says so
        assert is_whole(file) == (why == "")


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b"\xff\xff", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b"[" * 5000]
)
def test_headers_that_are_none(file: Path, header: bytes) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + random.Random(1).randbytes(100))
    assert not is_whole(file)
