"""Named files that are read in ranges of bytes: the files of a folder here; others are registered by name.

`ModelSettings.byte_ranges` names another implementation, as "module:class": the container has one for files that stay
in S3 (`container/models/files/s3/ranges.py`). It is called with the model's folder.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path


class ByteRanges(ABC):
    """Files of a model by name. `read` is called by several threads."""

    num_threads = 1
    """Ranges that are worth reading at the same time."""
    block_bytes = 1 << 20
    """Bytes of one range, about."""

    @abstractmethod
    def read(self, file: str, offset: int, out: memoryview) -> None:
        """Fill `out` with the bytes of a file from `offset` on.

        Raises:
            EOFError: the file ends before.
            OSError, or what the implementation raises: they cannot be read.
        """

    def close(self) -> None:  # noqa: B027  others hold nothing
        """Release files and connections."""


class FolderRanges(ByteRanges):
    """The files of a folder. They are opened once, and stay open until `close`."""

    num_threads = 4
    """With small blocks: a disk is fastest when what is read at the same time lies side by side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptors: dict[str, int] = {}

    def read(self, file: str, offset: int, out: memoryview) -> None:
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            opened = os.open(self._folder / file, os.O_RDONLY | os.O_CLOEXEC)
            descriptor = self._descriptors.setdefault(file, opened)
            if descriptor != opened:
                os.close(opened)  # another thread was faster
        done = 0
        while done < len(out):
            count = os.preadv(descriptor, [out[done:]], offset + done)
            if count == 0:
                raise EOFError(f"{self._folder / file} ends before the tensor that its header announces")
            done += count

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
