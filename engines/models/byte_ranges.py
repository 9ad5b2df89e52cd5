"""Read byte ranges of a model's files. This module reads local files.

`ModelSettings.byte_ranges` selects another implementation as "module:class", for example the container's reader for
files that stay in S3 (`container/models/files/s3/ranges.py`). The class is called with the model's folder.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from engines.models.mapped_files import MappedFile, MappedRange, can_populate, truncated


class ByteRanges(ABC):
    """The files of a model by name. Methods must be thread-safe."""

    num_threads = 1
    """Number of ranges to read concurrently."""
    block_bytes = 1 << 20
    """Approximate size of a range in bytes."""

    @abstractmethod
    def read(self, file: str, offset: int, out: memoryview) -> None:
        """Fill `out` with the bytes of a file, starting at `offset`.

        Raises:
            EOFError: the file ends before `out` is full.
            OSError, or another error of the implementation: the file cannot be read.
        """

    def map(self, file: str, offset: int, size: int) -> MappedRange | None:
        """Map bytes of a file, which the caller must load before use. Return None if the files cannot be mapped.

        Raises: EOFError: the file is too short.
        """
        return None

    def close(self) -> None:  # noqa: B027  optional to override
        """Close files and connections."""


class FolderRanges(ByteRanges):
    """The files of a folder. A thread opens a file on first use, and it stays open until `close`.

    Threads do not share descriptors: the system reads ahead for each, and reads of several threads in turn look random.
    """

    num_threads = 4
    """The blocks are small because a disk is fastest when concurrent reads are close to each other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[tuple[str, int], int] = {}
        """Descriptor by file and thread."""
        self._mapped: dict[str, MappedFile] = {}
        self._lock = threading.Lock()

    def read(self, file: str, offset: int, out: memoryview) -> None:
        key = file, threading.get_ident()
        descriptor = self._opened.get(key)
        if descriptor is None:
            descriptor = self._opened[key] = os.open(self._folder / file, os.O_RDONLY | os.O_CLOEXEC)
        done = 0
        while done < len(out):
            count = os.preadv(descriptor, [out[done:]], offset + done)
            if count == 0:
                raise EOFError(truncated(self._folder / file))
            done += count

    def map(self, file: str, offset: int, size: int) -> MappedRange | None:
        if not can_populate():
            return None
        with self._lock:
            if file not in self._mapped:
                try:
                    self._mapped[file] = MappedFile(self._folder / file)
                except (OSError, ValueError):
                    return None  # `read` may succeed, or reports the error
        return MappedRange(self._mapped[file], offset, size)

    def close(self) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()
        self._mapped.clear()
