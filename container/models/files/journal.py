"""How far a file is that is fetched in parts, remembered beside it, for whoever goes on after a break.

Two notes of it are kept. One is written with every block and never flushed: it outlives the process, for what was
written is the system's, but not the machine. The other is written by a thread of its own, after it has made the bytes
durable: it outlives a power cut too. The threads that fetch never wait for the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from container.models.publish import replace_text

PART_BYTES = 8 << 20
_FLUSH_BYTES = 8 << 20
"""So much may be lost in a power cut, and what comes while the disk is busy."""
_MAX_JOURNAL_BYTES = 64 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class _Record:
    """What the durable note holds."""

    version: str
    size: int
    part_bytes: int
    done: list[int]
    """Bytes of each part."""


def durable_note(target: Path) -> Path:
    return target.with_name(f"{target.name}.durable")


def written_note(target: Path) -> Path:
    return target.with_name(f"{target.name}.written")


def forget(target: Path) -> None:
    """Remove what came of a file, so that nobody goes on with it."""
    for path in (target, durable_note(target), written_note(target)):
        path.unlink(missing_ok=True)


class PartsFile:
    """A file that is written in parts by several threads. A context manager: leaving it makes all durable."""

    def __init__(self, target: Path, size: int, version: str) -> None:
        """Go on with `target` where a note of it is of the same version and size; else begin it anew. OSError."""
        self.size = size
        self._path = target
        self._version = version
        self._count = -(-size // PART_BYTES)
        mark = _mark(version, size)
        remembered = None
        if target.exists() and target.stat().st_size == size:
            remembered = _read_written(written_note(target), mark, self._count)
            remembered = remembered or _read_durable(durable_note(target), version, size, self._count)
        if remembered is None:
            forget(target)
            remembered = [0] * self._count
        self.done = remembered
        """Bytes of each part that are written; each changed only by the thread that fetches the part."""
        self._file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, size)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._note = os.open(written_note(target), flags, 0o644)
        os.pwrite(self._note, mark + b"".join(_COUNT.pack(done) for done in self.done), 0)
        self._mark_bytes = len(mark)
        self._unflushed = 0
        self._wake = threading.Event()
        self._closing = False
        self.failure: OSError | None = None
        """What the flushing thread met."""
        self._flusher = threading.Thread(target=self._flush_until_closed, name="flush", daemon=True)

    def open_parts(self) -> list[int]:
        """Indices of parts that are not whole."""
        return [index for index in range(self._count) if self.done[index] < self.part_size(index)]

    def part_size(self, index: int) -> int:
        return min(PART_BYTES, self.size - index * PART_BYTES)

    def append(self, index: int, data: bytes) -> None:
        """Write what comes next of a part. Raises OSError."""
        if self.failure is not None:
            raise self.failure
        offset = index * PART_BYTES + self.done[index]
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count
        self.done[index] += len(data)
        os.pwrite(self._note, _COUNT.pack(self.done[index]), self._mark_bytes + index * _COUNT.size)
        self._unflushed += len(data)  # a hint for the other thread: an addition that is lost does no harm
        if self._unflushed >= _FLUSH_BYTES:
            self._wake.set()

    def _flush_until_closed(self) -> None:
        try:
            closing = False
            while not closing:
                self._wake.wait()
                self._wake.clear()
                closing = self._closing
                self._unflushed = 0
                self._flush()
        except OSError as error:
            self.failure = error

    def _flush(self) -> None:
        done = list(self.done)  # before the flush: it covers at least these
        if not any(done):
            return
        os.fdatasync(self._file)
        record = _Record(self._version, self.size, PART_BYTES, done)
        replace_text(durable_note(self._path), json.dumps(asdict(record)))

    def __enter__(self) -> PartsFile:
        self._flusher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closing = True
        self._wake.set()  # the thread flushes once more and ends
        self._flusher.join()
        os.close(self._note)
        os.close(self._file)
        if kind is None and self.failure is not None:
            raise self.failure


def _mark(version: str, size: int) -> bytes:
    """Stands at the head of the written note: of which content it is, and since which start of the machine."""
    try:
        boot = _BOOT_ID.read_text()
    except OSError:
        boot = os.urandom(16).hex()  # nobody will take it for theirs
    return hashlib.sha256(f"{boot}\0{version}\0{size}\0{PART_BYTES}".encode()).digest()


def _read_written(path: Path, mark: bytes, count: int) -> list[int] | None:
    """Bytes done of each part; None where the note cannot be read or is of something else."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if not content.startswith(mark) or len(content) != len(mark) + count * _COUNT.size:
        return None
    return _checked([done for (done,) in _COUNT.iter_unpack(content[len(mark) :])], count)


def _read_durable(path: Path, version: str, size: int, count: int) -> list[int] | None:
    """As `_read_written`, from the durable note."""
    try:
        with path.open("rb") as file:
            content: Any = json.loads(file.read(_MAX_JOURNAL_BYTES))
        record = _Record(**content)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    same = (record.version, record.size, record.part_bytes) == (version, size, PART_BYTES)
    return _checked(record.done, count) if same else None


def _checked(done: Any, count: int) -> list[int] | None:
    if not isinstance(done, list) or len(done) != count:
        return None
    right = all(type(number) is int and 0 <= number <= PART_BYTES for number in done)
    return done if right else None
