"""Extraction of model.tar.gz archives."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import IO

_MAX_FILES = 100_000
_MAX_BYTES = 1 << 40


class BadArchive(Exception):
    """An archive cannot be extracted. The message is for users."""


def extract(file: IO[bytes], target: Path) -> None:
    """Extract a gzip-compressed tar archive. Nothing is written outside `target`. Raises BadArchive, OSError."""
    if not hasattr(tarfile, "data_filter"):
        raise BadArchive("archives are extracted only with Python 3.11.4 or later")
    num_bytes = 0
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            for number, member in enumerate(archive, 1):
                num_bytes += member.size
                if number > _MAX_FILES or num_bytes > _MAX_BYTES:
                    raise BadArchive(f"too large; allowed: at most {_MAX_FILES} files and {_MAX_BYTES} bytes")
                archive.extract(member, target, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BadArchive(f"not a valid gzip-compressed tar archive: {error}") from error
