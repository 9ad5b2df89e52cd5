"""What S3 knows of an object's content, against files that have it and files that do not."""

from __future__ import annotations

import base64
import hashlib
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.model_files import s3_content
from container.model_files.crc import BLOCK_BYTES, CRC32C, CRC64NVME, Crc, Polynomial
from tests.support.examples import examples

_CRC32 = Polynomial(0xEDB88320, 32)
"""zlib's, the oracle."""


def base64_of(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(3).randbytes(BLOCK_BYTES + 12345)


@pytest.mark.parametrize(
    ("polynomial", "check"), [(CRC64NVME, "ae8b14860a799888"), (CRC32C, "e3069283"), (_CRC32, "cbf43926")]
)
def test_crcs_have_their_published_check_values(polynomial: Polynomial, check: str) -> None:
    crc = Crc(polynomial)
    crc.update(b"123456789")
    assert crc.digest().hex() == check


def test_a_crc_over_blocks_equals_zlib_s(content: bytes) -> None:
    crc = Crc(_CRC32)
    crc.update(content)
    assert int.from_bytes(crc.digest(), "big") == zlib.crc32(content)


@examples(25)
@given(st.lists(st.binary(max_size=2000), max_size=4))
def test_a_crc_does_not_depend_on_how_the_bytes_come(pieces: list[bytes]) -> None:
    crc = Crc(_CRC32)
    for piece in pieces:
        crc.update(piece)
    assert int.from_bytes(crc.digest(), "big") == zlib.crc32(b"".join(pieces))


def _crc(polynomial: Polynomial, content: bytes) -> bytes:
    crc = Crc(polynomial)
    crc.update(content)
    return crc.digest()


@pytest.mark.parametrize("name", ["SHA256", "SHA1", "CRC32", "CRC64NVME", "CRC32C"])
def test_a_checksum_of_the_whole_object_tells_right_from_wrong(
    name: str, content: bytes, tmp_path: Path
) -> None:
    digest = {
        "SHA256": hashlib.sha256(content).digest(),
        "SHA1": hashlib.sha1(content).digest(),  # noqa: S324
        "CRC32": zlib.crc32(content).to_bytes(4, "big"),
        "CRC64NVME": _crc(CRC64NVME, content),
        "CRC32C": _crc(CRC32C, content),
    }[name]
    head = {f"Checksum{name}": base64_of(digest), "ChecksumType": "FULL_OBJECT", "ETag": '"abc-2"'}
    expected = s3_content.known("bucket", head)
    assert expected == s3_content.Expected(name, digest)
    file = tmp_path / "file"
    file.write_bytes(content)
    assert s3_content.matches(file, expected)
    damaged = bytearray(content)
    damaged[-5] ^= 1
    file.write_bytes(damaged)
    assert not s3_content.matches(file, expected)


MD5 = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("bucket", "head"),
    [
        ("b", {"ETag": f'"{MD5}-3"'}),
        ("b", {"ETag": f'"{MD5}-3"', "ChecksumCRC32": "3KGR9w==-3", "ChecksumType": "COMPOSITE"}),
        ("b", {"ETag": f'"{MD5}-3"', "ChecksumCRC32": "3KGR9w==", "ChecksumType": "COMPOSITE"}),
        ("b", {"ETag": f'"{MD5}-3"', "ChecksumCRC32": "3KGR9w==-3"}),
        ("b", {"ETag": f'"{MD5}"', "ServerSideEncryption": "aws:kms"}),
        ("b", {"ETag": f'"{MD5}"', "ServerSideEncryption": "aws:kms:dsse"}),
        ("b", {"ETag": f'"{MD5}"', "SSECustomerAlgorithm": "AES256"}),
        ("b--use1-az4--x-s3", {"ETag": f'"{MD5}"'}),
        ("b", {"ETag": '"not-an-md5"', "ChecksumSHA256": "%%%"}),
    ],
)
def test_what_is_no_checksum_of_the_whole_is_not_taken_for_one(bucket: str, head: dict[str, str]) -> None:
    assert s3_content.known(bucket, head) is None


@pytest.mark.parametrize("encryption", [{}, {"ServerSideEncryption": "AES256"}])
def test_an_etag_that_is_an_md5_is_one(encryption: dict[str, str]) -> None:
    expected = s3_content.known("b", {"ETag": f'"{MD5}"', **encryption})
    assert expected == s3_content.Expected("MD5", bytes.fromhex(MD5))
