"""A file that is fetched in parts. A note beside it records the bytes of each part, to resume after an interruption.

The note is written with every block but never flushed, so it survives a crash of the process, not of the machine. It
contains the machine's boot id: after a reboot, an unfinished file is fetched again from its beginning.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from pathlib import Path

PART_BYTES = 8 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_COUNT = struct.Struct("<I")


def note_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.written")


def forget(target: Path) -> None:
    """Remove the received bytes of a file and its note, so that the next fetch starts again."""
    for path in (target, note_of(target)):
        path.unlink(missing_ok=True)


class PartsFile:
    """A file that several threads write in parts. A context manager."""

    def __init__(self, target: Path, size: int, version: str) -> None:
        """Resume `target` if its note has the same version and size; else start again. Raises OSError."""
        self.size = size
        self._count = -(-size // PART_BYTES)
        mark = _mark(version, size)
        done = None
        if target.exists() and target.stat().st_size == size:
            done = _read_note(note_of(target), mark, self._count)
        if done is None:
            forget(target)
            done = [0] * self._count
        self.done = done
        """Bytes written of each part. Only the thread that fetches a part changes its number."""
        self._file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, size)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._note = os.open(note_of(target), flags, 0o644)
        os.pwrite(self._note, mark + b"".join(_COUNT.pack(count) for count in self.done), 0)
        self._mark_bytes = len(mark)
        self._writing = threading.Lock()
        """File systems let one thread write to a file at a time; the others would burn CPU time while they wait."""

    def open_parts(self) -> list[int]:
        """Return the indices of incomplete parts."""
        return [index for index in range(self._count) if self.done[index] < self.part_size(index)]

    def part_size(self, index: int) -> int:
        return min(PART_BYTES, self.size - index * PART_BYTES)

    def append(self, index: int, data: bytes) -> None:
        """Write the next bytes of a part. Raises OSError."""
        offset = index * PART_BYTES + self.done[index]
        view = memoryview(data)
        while view:
            with self._writing:
                count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count
        self.done[index] += len(data)
        os.pwrite(self._note, _COUNT.pack(self.done[index]), self._mark_bytes + index * _COUNT.size)

    def __enter__(self) -> PartsFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._note)
        os.close(self._file)


def _mark(version: str, size: int) -> bytes:
    """Return the head of the note: a hash of the content's version and size and the machine's boot id."""
    try:
        boot = _BOOT_ID.read_text()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{boot}\0{version}\0{size}\0{PART_BYTES}".encode()).digest()


def _read_note(path: Path, mark: bytes, count: int) -> list[int] | None:
    """Return the bytes of each part; None if the note cannot be read or belongs to other content."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if not content.startswith(mark) or len(content) != len(mark) + count * _COUNT.size:
        return None
    done = [number for (number,) in _COUNT.iter_unpack(content[len(mark) :])]
    return done if all(number <= PART_BYTES for number in done) else None
