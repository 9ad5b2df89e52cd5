"""Extraction of model.tar.gz archives."""

from __future__ import annotations

import tarfile
import zlib
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import IO

_MAX_FILES = 100_000
_MAX_BYTES = 1 << 40
_MAX_HEADER_BYTES = 256 << 20


class BadArchive(Exception):
    """An archive cannot be extracted. The message is for users."""


class _Decompressed(GzipFile):
    """A decompressed archive that limits the total size of the headers, which tarfile keeps in memory."""

    content_end = 0
    """Position of the next header. Everything before it is content, or a header that was read."""
    _header_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= self.content_end:
            if size is None or not 0 <= size <= _MAX_HEADER_BYTES - self._header_bytes:
                raise BadArchive(f"headers too large; allowed: at most {_MAX_HEADER_BYTES} bytes in total")
            self._header_bytes += size
        return super().read(size)


def extract(file: IO[bytes], target: Path) -> None:
    """Extract a gzip-compressed tar archive. Nothing is written outside `target`. Raises BadArchive, OSError."""
    if not hasattr(tarfile, "data_filter"):
        raise BadArchive("archives are extracted only with Python 3.11.4 or later")
    num_bytes = 0
    try:
        with (
            _Decompressed(mode="rb", fileobj=file) as data,
            tarfile.open(fileobj=data, mode="r:") as archive,
        ):
            for number, member in enumerate(archive, 1):
                num_bytes += member.size
                if number > _MAX_FILES or num_bytes > _MAX_BYTES:
                    raise BadArchive(f"too large; allowed: at most {_MAX_FILES} files and {_MAX_BYTES} bytes")
                data.content_end = archive.offset
                archive.extract(member, target, filter="data")
    except (tarfile.TarError, BadGzipFile, EOFError, zlib.error) as error:
        raise BadArchive(f"not a valid gzip-compressed tar archive: {error}") from error
