"""Compare the content of a file with the checksums that S3 has of the object.

S3 has a checksum of the whole object, or one of the checksums of its parts (COMPOSITE, as for multi-part uploads by
boto3), or only the ETag: the MD5 of the object, or the MD5 of the MD5s of its parts.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from container.models.files.checksums import ALGORITHMS, MD5, Algorithm, Hash

_PIECE_BYTES = 8 << 20
"""The CRC of a whole object is combined from those of pieces, which several threads compute."""
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """One part of an object that was uploaded in parts."""

    size: int
    digests: Mapping[str, bytes]
    """By algorithm, as far as S3 has them for single parts."""


@dataclass(frozen=True, slots=True)
class ObjectChecksum:
    """The best checksum of an object in the answer to HeadObject."""

    algorithm: Algorithm
    digest: bytes
    num_parts: int = 0
    """Number of parts whose digests `digest` is made of; 0: it is the digest of the object itself."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.algorithm.name} by part" if self.num_parts else self.algorithm.name


def object_checksum(bucket: str, head: Mapping[str, Any]) -> ObjectChecksum | None:
    """The best checksum in the answer to HeadObject; None without any."""
    for algorithm in ALGORITHMS:
        text = str(head.get(f"Checksum{algorithm.name}", ""))
        digest, _, count = text.partition("-")
        num_parts = int(count) if count.isdecimal() else 0
        composite = head.get("ChecksumType") == "COMPOSITE" or bool(count)
        found = decoded(algorithm, digest)
        if found and composite == bool(num_parts):
            return ObjectChecksum(algorithm, found, num_parts)
    etag = re.fullmatch(r'"([0-9a-fA-F]{32})(?:-([1-9][0-9]{0,4}))?"', str(head.get("ETag", "")))
    if etag and not _etag_is_no_md5(bucket, head):
        return ObjectChecksum(MD5, bytes.fromhex(etag[1]), int(etag[2] or 0))
    return None


def decoded(algorithm: Algorithm, text: str) -> bytes:
    """Decode a digest of S3; empty if it is not one of the algorithm."""
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return digest if len(digest) == algorithm.num_bytes else b""


def _etag_is_no_md5(bucket: str, head: Mapping[str, Any]) -> bool:
    """Whether the ETag is something else: the object has a key of its own, or is in a directory bucket."""
    encrypted = str(head.get("ServerSideEncryption", "")).startswith("aws:") or "SSECustomerAlgorithm" in head
    return encrypted or bucket.endswith("--x-s3")


class ContentCheck:
    """Compares a file with a checksum of S3, span by span, as soon as all bytes of a span are there."""

    def __init__(
        self, path: Path, size: int, expected: ObjectChecksum, parts: Sequence[ObjectPart] = ()
    ) -> None:
        """parts: in order, for a checksum of parts; their sizes add up to `size`."""
        self._path = path
        self._expected = expected
        self._parts = parts
        algorithm = expected.algorithm
        if parts:
            sizes = [part.size for part in parts]
        elif algorithm.join is not None:
            sizes = [min(_PIECE_BYTES, size - start) for start in range(0, size, _PIECE_BYTES)]
        else:
            sizes = [size]
        self._ends = list(accumulate(sizes, initial=0))
        """Start of each span, and the end of the last one."""
        self._missing = sizes
        self._digests: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def begin(self, start: int, stop: int) -> Hash | None:
        """Return a running hash to update with the bytes [start, stop), in order; pass its digest to `arrived`.

        Returns None unless exactly these bytes have a checksum of their own.
        """
        index = self._index(start)
        whole = self._ends[index : index + 2] == [start, stop]
        return self._expected.algorithm.begin() if whole else None

    def arrived(self, start: int, stop: int, digest: bytes | None = None) -> None:
        """Note that the bytes [start, stop) are in the file now; each is reported once, from any thread.

        digest: of the hash from `begin`; without it the bytes are read from the file.
        """
        if digest is not None:
            self._digests[self._index(start)] = digest
            return
        whole = []
        with self._lock:
            index = self._index(start)
            while index < len(self._missing) and self._ends[index] < stop:
                first, end = self._ends[index], self._ends[index + 1]
                self._missing[index] -= min(stop, end) - max(start, first)
                if self._missing[index] == 0:
                    whole.append(index)
                index += 1
        self._compute(whole)

    def _index(self, start: int) -> int:
        """The number of the span that has the byte `start`."""
        return bisect_right(self._ends, start) - 1

    def difference(self) -> str | None:
        """Describe the difference once all bytes are in the file; None without one. Raises OSError."""
        count = len(self._ends) - 1
        remaining = [index for index in range(count) if index not in self._digests]
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            list(pool.map(self._compute, ([index] for index in remaining)))
        digests = [self._digests[index] for index in range(count)]
        algorithm = self._expected.algorithm
        if not self._parts:
            sizes = [stop - start for start, stop in pairwise(self._ends)]
            whole = algorithm.joined(digests, sizes) if algorithm.join else digests[0]
            return None if whole == self._expected.digest else f"{algorithm.name} differs"
        for index, (part, digest) in enumerate(zip(self._parts, digests, strict=True)):
            if part.digests.get(algorithm.name, digest) != digest:
                return f"{algorithm.name} of part {index + 1} of {count} differs"
        right = algorithm.of(b"".join(digests)) == self._expected.digest
        return None if right else f"{algorithm.name} of its {count} parts differs"

    def _compute(self, indices: list[int]) -> None:
        if not indices:
            return
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for index in indices:
                first, end = self._ends[index], self._ends[index + 1]
                self._digests[index] = self._expected.algorithm.of_span(file, first, end)
        finally:
            os.close(file)
