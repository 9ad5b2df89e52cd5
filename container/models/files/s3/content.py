"""Compare the content of a file with S3's checksums of the object.

S3 has a checksum of the whole object, or a checksum of its parts' checksums (COMPOSITE, as for multi-part uploads by
boto3), or only the ETag: the MD5 of the object, or the MD5 of its parts' MD5s.
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

from container.models.files.s3.checksums import ALGORITHMS, MD5, Algorithm, Hash

_PIECE_BYTES = 8 << 20
"""Size of a piece. The CRC of a whole object is combined from CRCs of pieces, which several threads compute."""
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """One part of an object that was uploaded in parts."""

    size: int
    digests: Mapping[str, bytes]
    """Digests of the part by algorithm, as far as S3 has them."""


@dataclass(frozen=True, slots=True)
class ObjectChecksum:
    """The best checksum of an object in a HeadObject response."""

    algorithm: Algorithm
    digest: bytes
    num_parts: int = 0
    """Number of parts whose digests `digest` is made of; 0 if it is the digest of the object itself."""

    @property
    def name(self) -> str:
        """Name of the checksum in messages."""
        return f"{self.algorithm.name} by part" if self.num_parts else self.algorithm.name


def object_checksum(bucket: str, head: Mapping[str, Any]) -> ObjectChecksum | None:
    """Return the best checksum in a HeadObject response; None without any."""
    for algorithm in ALGORITHMS:
        text = str(head.get(f"Checksum{algorithm.name}", ""))
        digest, _, count = text.partition("-")
        num_parts = int(count) if count.isdecimal() else 0
        composite = head.get("ChecksumType") == "COMPOSITE" or bool(count)
        found = decode_digest(algorithm, digest)
        if found and composite == bool(num_parts):
            return ObjectChecksum(algorithm, found, num_parts)
    etag = re.fullmatch(r'"([0-9a-fA-F]{32})(?:-([1-9][0-9]{0,4}))?"', str(head.get("ETag", "")))
    if etag and not _etag_is_no_md5(bucket, head):
        return ObjectChecksum(MD5, bytes.fromhex(etag[1]), int(etag[2] or 0))
    return None


def decode_digest(algorithm: Algorithm, text: str) -> bytes:
    """Decode a digest in S3's base64; empty if it is not a digest of the algorithm."""
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return digest if len(digest) == algorithm.num_bytes else b""


def _etag_is_no_md5(bucket: str, head: Mapping[str, Any]) -> bool:
    """Return whether the ETag is not an MD5: the object is encrypted with KMS or the customer's key, or its bucket is a
    directory bucket."""
    encrypted = str(head.get("ServerSideEncryption", "")).startswith("aws:") or "SSECustomerAlgorithm" in head
    return encrypted or bucket.endswith("--x-s3")


class ContentCheck:
    """Compares a file with a checksum of S3, span by span, as soon as all bytes of a span have arrived."""

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
        """Return a running hash to update with the bytes [start, stop), in order; pass its digest to `mark_written`.

        Returns None unless exactly these bytes have a checksum of their own.
        """
        index = self._index(start)
        is_span = self._ends[index : index + 2] == [start, stop]
        return self._expected.algorithm.begin() if is_span else None

    def mark_written(self, start: int, stop: int, digest: bytes | None = None) -> None:
        """Record that the bytes [start, stop) are in the file. Call it once for each byte. Thread-safe.

        digest: of the hash from `begin`. Without it, the bytes are read from the file.
        """
        if digest is not None:
            self._digests[self._index(start)] = digest
            return
        complete = []
        with self._lock:
            index = self._index(start)
            while index < len(self._missing) and self._ends[index] < stop:
                first, end = self._ends[index], self._ends[index + 1]
                self._missing[index] -= min(stop, end) - max(start, first)
                if self._missing[index] == 0:
                    complete.append(index)
                index += 1
        self._compute(complete)

    def _index(self, start: int) -> int:
        """Return the index of the span that contains the byte `start`."""
        return bisect_right(self._ends, start) - 1

    def difference(self) -> str | None:
        """Return a description of the difference, or None. Call it when all bytes are in the file. Raises OSError."""
        count = len(self._ends) - 1
        remaining = [index for index in range(count) if index not in self._digests]
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            list(pool.map(self._compute, ([index] for index in remaining)))
        digests = [self._digests[index] for index in range(count)]
        algorithm = self._expected.algorithm
        if not self._parts:
            sizes = [stop - start for start, stop in pairwise(self._ends)]
            combined = algorithm.joined(digests, sizes) if algorithm.join else digests[0]
            return None if combined == self._expected.digest else f"{algorithm.name} differs"
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
