"""The completeness check of safetensors files against the safetensors library."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from container.models.files import safetensors_headers
from tests.support.examples import examples
from tests.support.model_folders import safetensors_bytes

_COMPLETE = safetensors_bytes(["a", "b"], 8192)


def is_complete(path: Path) -> bool:
    try:
        safetensors_headers.require_complete(path)
    except safetensors_headers.DamagedFile:
        return False
    return True


def library_error(path: Path) -> str:
    """Return the error of the library, or an empty string if it accepts the file."""
    try:
        with safe_open(path, framework="numpy"):
            return ""
    except (SafetensorError, OSError) as error:
        return str(error)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers") / "model.safetensors"


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(_COMPLETE)))
@example(len(_COMPLETE))
def test_only_the_whole_file_is_accepted(file: Path, length: int) -> None:
    file.write_bytes(_COMPLETE[:length])
    assert is_complete(file) == (library_error(file) == "") == (length == len(_COMPLETE))


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_header_is_accepted_only_if_the_library_accepts_it(
    file: Path, position: int, change: int
) -> None:
    content = bytearray(_COMPLETE)
    content[position] ^= change
    file.write_bytes(content)
    error = library_error(file)
    if "unknown variant" not in error:  # an unknown dtype is reported when the tensors are loaded
        assert is_complete(file) == (error == "")


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b"\xff\xff", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b"[" * 5000]
)
def test_invalid_headers_are_rejected(file: Path, header: bytes) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + random.Random(1).randbytes(100))
    assert not is_complete(file)


@pytest.mark.parametrize("shape", ["{}", f"{[1] * 65}"], ids=["object", "65 dimensions"])
def test_a_shape_is_a_list_of_at_most_64_numbers(file: Path, shape: str) -> None:
    write_tensor(file, shape, "[0, 2]")
    with pytest.raises(safetensors_headers.DamagedFile, match="tensor 'a' is not a list of at most 64"):
        safetensors_headers.require_complete(file)
    write_tensor(file, f"{[1] * 64}", "[0, 2]")
    assert safetensors_headers.require_complete(file) == 1


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [(f"[0, {2**63 + 1}]", "[0, 0]"), ("[]", f"[0, {'9' * 4300}]"), ("[0]", f"[{2**63 + 1}, {2**63 + 1}]")],
    ids=["size", "4300 digits", "offset"],
)
def test_numbers_are_limited(file: Path, shape: str, offsets: str) -> None:
    """Python does not write integers of more than 4300 digits, and multiplies them slowly."""
    write_tensor(file, shape, offsets)
    with pytest.raises(safetensors_headers.DamagedFile, match="tensor 'a' is not described in whole numbers"):
        safetensors_headers.require_complete(file)


def write_tensor(file: Path, shape: str, offsets: str) -> None:
    """Write a file with 2 bytes of data, and a tensor with this shape and these offsets."""
    header = f'{{"a": {{"dtype": "BF16", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
