"""Files mapped into the address space, so that weights are packed from the system's page cache and not copied first."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from operator import itemgetter
from pathlib import Path

_MADV_POPULATE_READ = 22
"""Map the pages of a range, and read those that are not in the page cache (Linux 5.14, madvise(2))."""
_MAP_NORESERVE = 0x4000
"""Reserve no memory for copies of the pages (mmap(2); in Python from 3.13 on)."""
_Position = tuple[str, int]
"""File and byte."""


class MappedFile:
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
            raise EOFError(truncated(self.path))
        if error:
            raise OSError(error, "the file cannot be read", str(self.path))

    def unmap(self, start: int, stop: int) -> None:
        """Unmap the pages within bytes [start, stop). They stay in the page cache."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            _advise(self._address + first, last - first, mmap.MADV_DONTNEED)


class MappedRange:
    """Bytes of a file in the memory of the page cache. They are unmapped when `view` and its users are gone.

    Only loaded bytes may be accessed: a read error at any other byte would raise SIGBUS and end the process.
    """

    def __init__(self, file: MappedFile, offset: int, size: int) -> None:
        """Raises: EOFError: the file is too short."""
        if offset + size > len(file.memory):
            raise EOFError(truncated(file.path))
        self._file = file
        self.position = str(file.path), offset
        self.view = memoryview(file.memory)[offset : offset + size]
        weakref.finalize(self.view, file.unmap, offset, offset + size).atexit = False

    def load(self, start: int, stop: int) -> None:
        """Read bytes [start, stop) of the range. Raises: EOFError: the file has become too short; OSError."""
        _, offset = self.position
        self._file.load(offset + start, offset + stop)


class PageLoader:
    """A thread that loads parts of files in the order of their positions, because disks read fastest sequentially."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mapped weights")
        self._lock = threading.Lock()
        self._waiting: list[tuple[_Position, Callable[[], int], Future[int]]] = []
        """Sorted by position."""
        self._position: _Position = "", 0

    def submit(self, position: _Position, load: Callable[[], int]) -> Future[int]:
        future: Future[int] = Future()
        with self._lock:
            insort(self._waiting, (position, load, future), key=itemgetter(0))
        self._pool.submit(self._load_next)
        return future

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _load_next(self) -> None:
        with self._lock:
            index = bisect_left(self._waiting, self._position, key=itemgetter(0)) % len(self._waiting)
            self._position, load, future = self._waiting.pop(index)
        try:
            future.set_result(load())
        except Exception as error:
            future.set_exception(error)


def truncated(path: Path) -> str:
    """Return the message for a file that has become too short."""
    return f"{path} is truncated: a tensor in its header is beyond the end"


@cache
def can_populate() -> bool:
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
