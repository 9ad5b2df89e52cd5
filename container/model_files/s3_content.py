"""Whether a file has the content that S3 says the object has: by a checksum of the whole object, or an MD5 as ETag."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_BLOCK_BYTES = 4 << 20


class _Sum(Protocol):
    """As hashlib's objects are."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _numpy_crc(name: str) -> _Sum:
    from container.model_files import crc  # numpy is slow to import, and mostly not needed

    return crc.Crc(crc.CRC64NVME if name == "CRC64NVME" else crc.CRC32C)


_SUMS: dict[str, tuple[Callable[[], _Sum], int]] = {
    "SHA256": (hashlib.sha256, 32),
    "SHA1": (lambda: hashlib.sha1(usedforsecurity=False), 20),
    "CRC32": (_Crc32, 4),
    "MD5": (lambda: hashlib.md5(usedforsecurity=False), 16),
    "CRC64NVME": (lambda: _numpy_crc("CRC64NVME"), 8),
    "CRC32C": (lambda: _numpy_crc("CRC32C"), 4),
}
"""In the order in which they are used, slow ones last, with the bytes of each. S3 gives them as `Checksum<name>`, but
MD5, which is the ETag of objects that came in one piece.
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """What S3 knows of an object's content."""

    algorithm: str
    digest: bytes


def known(bucket: str, head: Mapping[str, Any]) -> Expected | None:
    """The best that HeadObject's answer has for the whole object; None where there is nothing."""
    whole = head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    for name, (_, size) in _SUMS.items():
        if name == "MD5":
            etag = re.fullmatch(r'"([0-9a-fA-F]{32})"', str(head.get("ETag", "")))
            digest = bytes.fromhex(etag[1]) if etag and not _etag_is_no_md5(bucket, head) else b""
        else:
            digest = _decoded(str(head.get(f"Checksum{name}", ""))) if whole else b""
        if len(digest) == size:  # a checksum of parts ends in '-<count>', and is none of the file
            return Expected(name, digest)
    return None


def _etag_is_no_md5(bucket: str, head: Mapping[str, Any]) -> bool:
    """Encrypted with another key than S3's own, or in a directory bucket: the ETag is something else then."""
    encrypted = str(head.get("ServerSideEncryption", "")).startswith("aws:") or "SSECustomerAlgorithm" in head
    return encrypted or bucket.endswith("--x-s3")


def matches(path: Path, expected: Expected) -> bool:
    """Read the file once. Raises OSError."""
    make, _ = _SUMS[expected.algorithm]
    total = make()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            total.update(block)
    return total.digest() == expected.digest


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
