"""A model in S3 whose weights stay there. Only the headers of weights are fetched.

A local file of weights has its real size, but after the header it is a hole, which takes no disk space. Code that reads
names, sizes and headers therefore works as usual.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from container.models.files.choice import is_safetensors
from container.models.files.remote import RemoteFile, Report, Verification
from container.models.files.s3.manifest import MANIFEST, manifest_text
from container.models.files.s3.ranges import read_range
from container.models.files.s3.remote import S3Remote

_MAX_HEADER_BYTES = 100_000_000
_STREAMED = Verification(
    "", "weights stay in S3; each range is checked only by its length and the object's ETag"
)
_MADE_HERE = Verification("the listing")


@dataclass(slots=True)
class StreamedS3:
    """A model under a prefix of a bucket, without the content of its weights."""

    remote: S3Remote
    _manifest: bytes = field(default=b"", init=False, repr=False)
    """The manifest, once the files are listed."""

    @property
    def name(self) -> str:
        return self.remote.name

    def list_files(self) -> tuple[RemoteFile, ...]:
        files = tuple(file for file in self.remote.list_files() if file.path != MANIFEST)
        weights = tuple(file for file in files if is_safetensors(file.path))
        self._manifest = manifest_text(self.remote.address, weights).encode()
        digest = hashlib.sha256(self._manifest).hexdigest()
        return (*files, RemoteFile(MANIFEST, len(self._manifest), digest))

    def fetch(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        if file.path == MANIFEST:
            target.write_bytes(self._manifest)
            report(file.size)
            return _MADE_HERE
        if not is_safetensors(file.path):
            return self.remote.fetch(file, target, report)
        self._fetch_header(file, target)
        report(file.size)
        return _STREAMED

    def verify(self, file: RemoteFile, path: Path) -> Verification:
        if file.path == MANIFEST:
            return _MADE_HERE
        return _STREAMED if is_safetensors(file.path) else self.remote.verify(file, path)

    def _fetch_header(self, file: RemoteFile, target: Path) -> None:
        """Fetch the header of a file. The caller checks the header, as for whole files.

        Raises: ModelNotAvailable, OSError.
        """
        source = self.remote.object_of(file)
        prefix = bytearray(min(8, file.size))
        read_range(source, 0, memoryview(prefix))
        length = int.from_bytes(prefix, "little")
        header = bytearray(length if len(prefix) + length <= min(file.size, _MAX_HEADER_BYTES) else 0)
        read_range(source, len(prefix), memoryview(header))
        target.write_bytes(prefix + header)
        os.truncate(target, file.size)
