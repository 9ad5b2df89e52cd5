"""Verify that a file has the content of an S3 object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.models.errors import DamagedContent
from container.models.files.remote import Verification
from container.models.files.s3.content import ContentCheck, ObjectChecksum, object_checksum
from container.models.files.s3.layout import layouts
from container.models.files.s3.parts import S3Object


class ObjectCheck:
    """Compares a file with its S3 object, while the bytes arrive and afterwards."""

    def __init__(self, source: S3Object, head: Mapping[str, Any], path: Path) -> None:
        """head: the HeadObject response, with checksums. Raises: RemoteUnreachable."""
        self._source = source
        self._expected = object_checksum(source.bucket, head)
        self._checks = _checks(source, self._expected, path)
        self.running = next(self._checks, None)
        """The check that runs while the bytes arrive; None if there is nothing to compare with."""

    def verify(self) -> Verification:
        """Verify the complete file. Raises: DamagedContent, RemoteUnreachable, OSError."""
        if self._expected is None:
            return Verification("", "S3 has no checksum, and the ETag is not an MD5 digest")
        if self.running is None:
            return Verification(
                "",
                f"S3 has {self._expected.algorithm.name} of the parts only, and does not list the parts",
            )
        difference = self.running.difference()
        while difference and (following := next(self._checks, None)):
            difference = following.difference()
        if difference:
            raise DamagedContent(
                f"{self._source.where}: the file differs from the object in S3 ({difference}): it was damaged during"
                " the transfer, on this disk or in S3"
            )
        return Verification(self._expected.name)


def _checks(source: S3Object, expected: ObjectChecksum | None, path: Path) -> Iterator[ContentCheck]:
    """Yield a check for every layout that the object's parts may have."""
    if expected is None:
        return
    if not expected.num_parts:
        yield ContentCheck(path, source.file.size, expected)
        return
    for parts in layouts(source, expected.num_parts):
        yield ContentCheck(path, source.file.size, expected, parts)
