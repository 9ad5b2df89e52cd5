"""One object of S3 and one file: do they have the same content, as far as S3 tells?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.models.files.base import DamagedContent
from container.models.files.patience import Patience
from container.models.files.remote import Verification
from container.models.files.s3.content import ContentCheck, Stated, stated
from container.models.files.s3.layout import layouts
from container.models.files.s3.parts import S3Object


class ObjectCheck:
    """Compares a file with its object, while its bytes come and afterwards."""

    def __init__(self, source: S3Object, head: Mapping[str, Any], path: Path) -> None:
        """`head` is the answer to HeadObject with its checksums. Raises: RemoteUnreachable."""
        self._source = source
        self._stated = stated(source.bucket, head)
        self._checks = _checks(source, self._stated, path)
        self._check = next(self._checks, None)

    def arrived(self, start: int, stop: int) -> None:
        """The bytes [start, stop) are in the file now: each is said once. May be called from any thread."""
        if self._check is not None:
            self._check.arrived(start, stop)

    def verify(self) -> Verification:
        """The verdict, once all bytes are in the file. Raises: DamagedContent, RemoteUnreachable, OSError."""
        if self._stated is None:
            return Verification("", "S3 has no checksum of it, and its ETag is no MD5")
        if self._check is None:
            return Verification(
                "",
                f"S3 has {self._stated.algorithm.name} of its parts only, and does not say which parts these are",
            )
        difference = self._check.difference()
        while difference and (following := next(self._checks, None)):
            difference = following.difference()
        if difference:
            raise DamagedContent(
                f"{self._source.where}: the file is not what S3 has ({difference}): it was damaged on the way, on the "
                "disk or in the store"
            )
        return Verification(self._stated.name)


def _checks(source: S3Object, statement: Stated | None, path: Path) -> Iterator[ContentCheck]:
    """One for every layout that the object's parts may have."""
    if statement is None:
        return
    if not statement.num_parts:
        yield ContentCheck(path, source.file.size, statement)
        return
    for parts in layouts(source, statement.num_parts, Patience()):
        yield ContentCheck(path, source.file.size, statement, parts)
