"""Read byte ranges of a model's files. This module reads local files.

`ModelSettings.byte_ranges` selects another implementation as "module:class", for example the container's reader for
files that stay in S3 (`container/models/files/s3/ranges.py`). The class is called with the model's folder.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

_MADV_POPULATE_READ = 22
"""Map the pages of a range, and read those that are not in the page cache (Linux 5.14, madvise(2))."""
_MAP_NORESERVE = 0x4000
"""Reserve no memory for copies of the pages (mmap(2); in Python from 3.13 on)."""


class _MappedFile:
    """A file in the address space. Pages are in the system's page cache, and are not copied."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError, ValueError: the file cannot be mapped."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        # A private, writable mapping, because torch takes writable memory only. Nobody writes.
        kind = mmap.MAP_PRIVATE | _MAP_NORESERVE
        self.memory = mmap.mmap(self._descriptor, 0, kind, mmap.PROT_READ | mmap.PROT_WRITE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def load(self, start: int, stop: int) -> None:
        """Read and map the pages of bytes [start, stop). Raises: EOFError: the file has become too short; OSError."""
        # The whole range is requested from the disk at once. The kernel's own read-ahead may be small.
        os.posix_fadvise(self._descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        error = _advise(self._address + first, stop - first, _MADV_POPULATE_READ)
        if error and os.fstat(self._descriptor).st_size < stop:
            raise EOFError(_truncated(self.path))
        if error:
            raise OSError(error, "the file cannot be read", str(self.path))

    def unmap(self, start: int, stop: int) -> None:
        """Unmap the pages within bytes [start, stop). They stay in the page cache."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            _advise(self._address + first, last - first, mmap.MADV_DONTNEED)


class MappedRange:
    """Bytes of a file in the memory of the page cache. They are unmapped when `view` and its users are gone.

    Only loaded bytes may be used: an error of the file at another place would end the process.
    """

    def __init__(self, file: _MappedFile, offset: int, size: int) -> None:
        """Raises: EOFError: the file is too short."""
        if offset + size > len(file.memory):
            raise EOFError(_truncated(file.path))
        self._file = file
        self.position = str(file.path), offset
        self.view = memoryview(file.memory)[offset : offset + size]
        weakref.finalize(self.view, file.unmap, offset, offset + size).atexit = False

    def load(self, start: int, stop: int) -> None:
        """Read bytes [start, stop) of the range. Raises: EOFError: the file has become too short; OSError."""
        _, offset = self.position
        self._file.load(offset + start, offset + stop)


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
        """Map bytes of a file, which are then to be loaded. Return None if the files cannot be mapped.

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
        self._mapped: dict[str, _MappedFile] = {}
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
                raise EOFError(_truncated(self._folder / file))
            done += count

    def map(self, file: str, offset: int, size: int) -> MappedRange | None:
        if not _can_populate():
            return None
        with self._lock:
            if file not in self._mapped:
                try:
                    self._mapped[file] = _MappedFile(self._folder / file)
                except (OSError, ValueError):
                    return None  # `read` may succeed, or reports the error
        return MappedRange(self._mapped[file], offset, size)

    def close(self) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()
        self._mapped.clear()


def _truncated(path: Path) -> str:
    return f"{path} is truncated: a tensor in its header is beyond the end"


@cache
def _can_populate() -> bool:
    """Return whether the kernel can load mapped pages on request, and so report errors instead of raising SIGBUS."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return _advise(address, mmap.PAGESIZE, _MADV_POPULATE_READ) == 0


def _advise(address: int, size: int, advice: int) -> int:
    """Call madvise(2) and return 0 or the error number. Python's `mmap.madvise` would hold the GIL meanwhile."""
    return 0 if _libc().madvise(address, size, advice) == 0 else ctypes.get_errno()


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
