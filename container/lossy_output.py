"""Output that never waits long. A hanging reader must stop neither a server nor its shutdown.

Readers hang in `lmi serve | less`, in a terminal after Ctrl-S, or when a log driver does.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import threading
from typing import IO, Any, TextIO

_PATIENCE_SECONDS = 1.0
"""Time for a reader that has read so far to make room."""
_ONE_AT_A_TIME = threading.Lock()
"""Held while writing, because a pipe may have room for only one of two writers."""


class LossyOutput(io.RawIOBase):
    """Writes to a file, which stays open. What its reader does not take in time, or cannot be written, is lost.

    Raises no errors, not even after the file has been closed.
    """

    def __init__(self, file: IO[bytes] | TextIO) -> None:
        self._file = file
        self._terminal: int | None = None
        self._patience = _PATIENCE_SECONDS
        if file.isatty():
            # A terminal may take less than a piece, and a write would wait until it takes the rest.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            with contextlib.suppress(OSError):
                self._terminal = os.open(f"/proc/self/fd/{file.fileno()}", flags)

    def close(self) -> None:
        super().close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def fileno(self) -> int:
        return self._file.fileno() if self._terminal is None else self._terminal

    def isatty(self) -> bool:
        return self._file.isatty()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the disk full
            for start in range(0, len(data), select.PIPE_BUF):
                if not self._write_piece(data[start : start + select.PIPE_BUF]):
                    break
        return len(data)

    def _write_piece(self, piece: bytes) -> bool:
        """Write at most PIPE_BUF bytes, which a writable pipe takes at once. Returns False if there is no room."""
        while piece and self._has_room(self._patience):
            with _ONE_AT_A_TIME:
                if self._has_room(0.0):
                    piece = piece[os.write(self.fileno(), piece) :]
        self._patience = 0.0 if piece else _PATIENCE_SECONDS  # otherwise each further line would wait
        return not piece

    def _has_room(self, seconds: float) -> bool:
        return bool(select.select([], [self], [], seconds)[1])


def lossy(stream: TextIO) -> TextIO:
    """Return a stream that writes to the file of `stream`, but loses output. Returns `stream` if it has no file."""
    try:
        stream.fileno()
    except OSError:
        return stream
    output = io.BufferedWriter(LossyOutput(stream))
    return io.TextIOWrapper(output, stream.encoding, errors="backslashreplace")
