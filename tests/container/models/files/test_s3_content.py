"""Checksums of S3 objects, against intact and damaged files."""

from __future__ import annotations

import base64
import random
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from container.models.files.s3.checksums import ALGORITHMS, MD5, Algorithm
from container.models.files.s3.content import ContentCheck, ObjectChecksum, ObjectPart, object_checksum

BY_NAME = {algorithm.name: algorithm for algorithm in (*ALGORITHMS, MD5)}
CRC32 = BY_NAME["CRC32"]
SIZES = [5 << 20, 7 << 20, 12345]
PARTS = [ObjectPart(size, {}) for size in SIZES]


def base64_of(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(3).randbytes(sum(SIZES))


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("CRC64NVME", "ae8b14860a799888"),
        ("CRC32C", "e3069283"),
        ("CRC32", "cbf43926"),
        ("SHA1", "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
    ],
)
def test_checksums_equal_published_values(name: str, digest: str) -> None:
    assert BY_NAME[name].of(b"123456789").hex() == digest


@pytest.mark.parametrize("name", BY_NAME)
def test_a_full_object_checksum_detects_damage(name: str, content: bytes, file: Path) -> None:
    algorithm = BY_NAME[name]
    digest = algorithm.of(content)
    head = {f"Checksum{name}": base64_of(digest), "ChecksumType": "FULL_OBJECT", "ETag": '"abc-2"'}
    if algorithm is MD5:
        head = {"ETag": f'"{digest.hex()}"'}
    checksum = object_checksum("bucket", head)
    assert checksum == ObjectChecksum(algorithm, digest)
    assert ContentCheck(file, len(content), checksum).difference() is None
    damage(file, len(content) - 5)
    assert ContentCheck(file, len(content), checksum).difference() == f"{name} differs"


def composite(algorithm: Algorithm, content: bytes) -> bytes:
    """Return the digest of the digests of the parts."""
    ends = list(accumulate(SIZES, initial=0))
    return algorithm.of(b"".join(algorithm.of(content[start:stop]) for start, stop in pairwise(ends)))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_composite_checksum_detects_damage(name: str, content: bytes, file: Path) -> None:
    algorithm = BY_NAME[name]
    digest = composite(algorithm, content)
    head = {f"Checksum{name}": f"{base64_of(digest)}-3", "ChecksumType": "COMPOSITE", "ETag": '"abc-3"'}
    if algorithm is MD5:
        head = {"ETag": f'"{digest.hex()}-3"'}
    checksum = object_checksum("bucket", head)
    assert checksum == ObjectChecksum(algorithm, digest, 3)
    assert ContentCheck(file, len(content), checksum, PARTS).difference() is None
    damage(file, SIZES[0] + 5)
    assert ContentCheck(file, len(content), checksum, PARTS).difference() == f"{name} of its 3 parts differs"


def test_parts_are_verified_as_soon_as_their_bytes_are_written(content: bytes, file: Path) -> None:
    """Spans may arrive in any order and size. A verified part is not read again, so later damage goes unnoticed."""
    checksum = ObjectChecksum(CRC32, composite(CRC32, content), 3)
    check = ContentCheck(file, len(content), checksum, PARTS)
    spans = list(pairwise([0, 3 << 20, 6 << 20, 11 << 20, len(content)]))
    for start, stop in [spans[2], spans[0], spans[1]]:
        check.mark_written(start, stop)
    damage(file, 1000)
    assert check.difference() is None, "the first part was read again"
    damage(file, len(content) - 1)
    incomplete = ContentCheck(file, len(content), checksum, PARTS)
    incomplete.mark_written(*spans[0])
    assert incomplete.difference() is not None


def test_digests_computed_during_the_download_avoid_a_second_read(content: bytes, tmp_path: Path) -> None:
    """A digest begins only for the exact range of a part."""

    def difference(received: bytes) -> str | None:
        checksum = ObjectChecksum(CRC32, composite(CRC32, content), 3)
        check = ContentCheck(tmp_path / "never read", len(content), checksum, PARTS)
        start = 0
        for stop in accumulate(SIZES):
            digester = check.begin(start, stop)
            assert digester is not None
            digester.update(received[start : start + 1000])
            digester.update(received[start + 1000 : stop])
            check.mark_written(start, stop, digester.digest())
            start = stop
        assert check.begin(0, SIZES[0] - 1) is check.begin(1, SIZES[0]) is None
        assert check.begin(0, SIZES[0] + SIZES[1]) is None
        return check.difference()

    assert difference(content) is None
    assert difference(content[:-1] + bytes([content[-1] ^ 1])) == "CRC32 of its 3 parts differs"


def test_an_empty_object_is_verified(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for algorithm in (CRC32, BY_NAME["SHA256"]):
        checksum = ObjectChecksum(algorithm, algorithm.of(b""))
        assert ContentCheck(tmp_path / "empty", 0, checksum).difference() is None


def test_a_truncated_file_differs(content: bytes, file: Path) -> None:
    checksum = ObjectChecksum(CRC32, CRC32.of(content))
    with file.open("r+b") as opened:
        opened.truncate(len(content) - 100)
    assert ContentCheck(file, len(content), checksum).difference() == "CRC32 differs"


HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("bucket", "head"),
    [
        ("b", {"ETag": '"no-md5"', "ChecksumCRC32": "3KGR9w==", "ChecksumType": "COMPOSITE"}),
        ("b", {"ETag": '"no-md5"', "ChecksumCRC32": "3KGR9w==-x"}),
        ("b", {"ETag": f'"{HEX}-0"'}),
        ("b", {"ETag": f'"{HEX}-123456"'}),
        ("b", {"ETag": f'"{HEX}"', "ServerSideEncryption": "aws:kms"}),
        ("b", {"ETag": f'"{HEX}"', "ServerSideEncryption": "aws:kms:dsse"}),
        ("b", {"ETag": f'"{HEX}-3"', "ServerSideEncryption": "aws:kms"}),
        ("b", {"ETag": f'"{HEX}"', "SSECustomerAlgorithm": "AES256"}),
        ("b--use1-az4--x-s3", {"ETag": f'"{HEX}"'}),
        ("b", {"ETag": '"not-an-md5"', "ChecksumSHA256": "%%%"}),
    ],
)
def test_headers_without_a_usable_checksum_give_none(bucket: str, head: dict[str, str]) -> None:
    assert object_checksum(bucket, head) is None


def test_the_etag_is_used_if_the_checksum_is_invalid() -> None:
    checksum = object_checksum(
        "b", {"ETag": f'"{HEX}-3"', "ChecksumCRC32": "3KGR9w==", "ChecksumType": "COMPOSITE"}
    )
    assert checksum == ObjectChecksum(MD5, bytes.fromhex(HEX), 3)


@pytest.mark.parametrize("encryption", [{}, {"ServerSideEncryption": "AES256"}])
def test_the_etag_of_a_simple_upload_is_its_md5(encryption: dict[str, str]) -> None:
    assert object_checksum("b", {"ETag": f'"{HEX}"', **encryption}) == ObjectChecksum(MD5, bytes.fromhex(HEX))
