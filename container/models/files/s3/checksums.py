"""The checksum algorithms of S3. CRCs come from awscrt and zlib-ng, hashes from hashlib."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from awscrt import checksums as crt
from zlib_ng import zlib_ng

_BLOCK_BYTES = 1 << 20
"""Bytes per read, small enough to be hashed while they are in the CPU's cache."""


class Hash(Protocol):
    """The interface of a hash object of hashlib."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc:
    """A running CRC with the interface of hashlib."""

    def __init__(self, function: Callable[[bytes | memoryview, int], int], num_bytes: int) -> None:
        self._function = function
        self._num_bytes = num_bytes
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        """Return the CRC in big-endian byte order, as in S3."""
        return self._value.to_bytes(self._num_bytes, "big")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A checksum algorithm."""

    name: str
    num_bytes: int
    """Size of a digest in bytes."""
    begin: Callable[[], Hash]
    join: Callable[[int, int, int], int] | None = None
    """Combines the CRCs of two adjacent pieces, given the length of the second one; None for hashes."""

    def of(self, content: bytes) -> bytes:
        """Return the digest of bytes."""
        begun = self.begin()
        begun.update(content)
        return begun.digest()

    def of_span(self, file: int, start: int, stop: int) -> bytes:
        """Return the digest of the bytes [start, stop) of the file with descriptor `file`. Raises OSError."""
        begun = self.begin()
        buffer = memoryview(bytearray(min(_BLOCK_BYTES, stop - start)))
        while start < stop:
            count = os.preadv(file, [buffer[: stop - start]], start)
            if count == 0:
                break  # the file is shorter, so its digest will differ
            begun.update(buffer[:count])
            start += count
        return begun.digest()

    def joined(self, digests: list[bytes], sizes: list[int]) -> bytes:
        """Return the CRC of adjacent pieces, given their CRCs and sizes in bytes."""
        if self.join is None:
            raise ValueError(f"{self.name}: digests of parts cannot be combined")
        value = 0
        for digest, size in zip(digests, sizes, strict=True):
            value = self.join(value, int.from_bytes(digest, "big"), size)
        return value.to_bytes(self.num_bytes, "big")


def _crc(name: str, num_bytes: int, function: Callable[..., int], join: Callable[..., int]) -> Algorithm:
    return Algorithm(name, num_bytes, partial(_Crc, function, num_bytes), join)


MD5 = Algorithm("MD5", 16, partial(hashlib.md5, usedforsecurity=False))
ALGORITHMS = (
    Algorithm("SHA256", 32, hashlib.sha256),
    Algorithm("SHA1", 20, partial(hashlib.sha1, usedforsecurity=False)),
    _crc("CRC64NVME", 8, crt.crc64nvme, crt.combine_crc64nvme),
    _crc("CRC32C", 4, crt.crc32c, crt.combine_crc32c),
    _crc("CRC32", 4, zlib_ng.crc32, crt.combine_crc32),  # 4 to 5 times as fast as crt.crc32 without AVX-512
)
"""Algorithms in order of preference. S3's fields are named `Checksum<name>`."""
