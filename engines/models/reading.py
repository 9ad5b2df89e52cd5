"""Prefetch tensors: while one is packed, the next ones are read from the disk or the network.

The order is known in advance because a model is first built without data, which records its requests.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch

from engines.models.mapped_files import MappedRange, PageLoader
from engines.models.tensor_files import BadCheckpoint, TensorFiles
from engines.partition import Shard

_AHEAD_BYTES = 256 << 20
"""Bytes of tensors to prefetch. They do not increase peak memory, because they are part of the weights that the rank
will hold when loading ends."""
_SMALL_BYTES = 1 << 20
_LOADED_BYTES = 64 << 20
"""Bytes of a mapped tensor to load at a time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a tensor, optionally restricted to some columns."""

    name: str
    rows: Shard
    columns: Shard | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Pieces to stack into one tensor along the first dimension."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]
    mapped: bool = False
    """Whether to return the pieces as views of the page cache, if the files can be mapped. Pieces have whole rows."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class _PendingRead:
    request: Request
    tensors: list[torch.Tensor]
    parts: list[Future[int]]


class _Staging:
    """Memory for tensors, reused once a tensor is freed. The first touch of a page costs more than filling the page."""

    def __init__(self) -> None:
        self.needed = 0
        """Bytes still to be read. Free memory beyond this is returned to the system."""
        self._free: list[mmap.mmap] = []

    def new_tensor(self, request: Request) -> torch.Tensor:
        """Return an uninitialized tensor of the request's shape."""
        if request.num_bytes < _SMALL_BYTES:
            return torch.empty(request.shape, dtype=request.dtype)
        fitting = [memory for memory in self._free if len(memory) >= request.num_bytes]
        if fitting:
            memory = min(fitting, key=len)
            self._free.remove(memory)
        else:
            memory = mmap.mmap(-1, request.num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel without transparent huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        # The tensor's storage keeps the view alive as long as any tensor uses it.
        view = memoryview(memory)
        weakref.finalize(view, self._release, memory).atexit = False
        return torch.frombuffer(view, dtype=request.dtype, count=math.prod(request.shape)).view(request.shape)

    def _release(self, memory: mmap.mmap) -> None:
        if sum(map(len, self._free)) + len(memory) <= self.needed:
            self._free.append(memory)


class TensorReader:
    """Reads tensors in blocks with several threads, and prefetches the next ones."""

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        self._pool = ThreadPoolExecutor(files.ranges.num_threads, thread_name_prefix="weights")
        self._staging = _Staging()
        self._loader = PageLoader()
        self._planned: deque[Request] = deque()
        self._started: deque[_PendingRead] = deque()
        self._ahead_bytes = 0
        """Bytes of the prefetched tensors that were not taken yet."""
        self.bytes_read = 0
        """Bytes read for the tensors that were taken."""

    def prefetch(self, requests: Sequence[Request]) -> None:
        """Start to prefetch the tensors that will be taken, in this order."""
        self._planned.extend(requests)
        self._staging.needed = sum(request.num_bytes for request in self._planned)
        self._read_ahead()

    def read(self, request: Request) -> list[torch.Tensor]:
        """Return matrices to stack: the pieces if they are mapped, else one tensor in memory of its own.

        Raises: BadCheckpoint, or an error of the files.
        """
        if self._started and self._started[0].request == request:
            started = self._started.popleft()
            self._ahead_bytes -= request.num_bytes
        else:
            started = self._start(request)
        self._read_ahead()
        self.bytes_read += sum(part.result() for part in started.parts)
        return started.tensors

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._loader.close()

    def _read_ahead(self) -> None:
        while self._planned:
            num_bytes = self._planned[0].num_bytes
            if self._ahead_bytes and self._ahead_bytes + num_bytes > _AHEAD_BYTES:
                return
            self._started.append(self._start(self._planned.popleft()))
            self._ahead_bytes += num_bytes
            self._staging.needed -= num_bytes

    def _start(self, request: Request) -> _PendingRead:
        mapped = self._map(request) if request.mapped else None
        if mapped is not None:
            parts = [part for _, each in mapped for part in self._loads(each)]
            return _PendingRead(request, [tensor for tensor, _ in mapped], parts)
        tensor = self._staging.new_tensor(request)
        parts = [self._pool.submit(read) for read in self._reads(request, tensor)]
        return _PendingRead(request, [tensor], parts)

    def _map(self, request: Request) -> list[tuple[torch.Tensor, MappedRange]] | None:
        """Return the pieces of a request where the page cache holds them; None if that is not possible."""
        found = [
            self._files.map_rows(piece.name, piece.rows.start, piece.rows.stop) for piece in request.pieces
        ]
        mapped = [each for each in found if each is not None]
        return mapped if len(mapped) == len(found) else None

    def _loads(self, mapped: MappedRange) -> Iterator[Future[int]]:
        """Start to load a range."""
        path, offset = mapped.position
        for start in range(0, len(mapped.view), _LOADED_BYTES):
            yield self._loader.submit((path, offset + start), partial(_load, mapped, start))

    def _reads(self, request: Request, out: torch.Tensor) -> Iterator[partial[int]]:
        """Yield the reads that fill `out`, one for each block."""
        place = 0
        height = sum(piece.rows.size for piece in request.pieces)
        flat = out.view(height, -1) if out.numel() else out
        step = max(1, self._files.ranges.block_bytes * height // max(1, request.num_bytes))
        for piece in request.pieces if out.numel() else ():
            for first in range(piece.rows.start, piece.rows.stop, step):
                rows = Shard(first, min(first + step, piece.rows.stop))
                target = flat[place : place + rows.size]
                place += rows.size
                if piece.columns is None:
                    yield partial(self._files.read_rows, piece.name, rows.start, rows.stop, target)
                else:
                    yield partial(self._files.read_columns, piece.name, rows, piece.columns, target)


def _load(mapped: MappedRange, start: int) -> int:
    """Load the next bytes of a range, and return their number."""
    stop = min(start + _LOADED_BYTES, len(mapped.view))
    try:
        mapped.load(start, stop)
    except EOFError as error:
        raise BadCheckpoint(str(error)) from None
    return stop - start
