"""The status board: a small shared file that every rank's step loop writes and `/ping` reads.

It is shared memory instead of messages, because `/ping` must reply while the engine is busy, stopped or dead. Layout,
little-endian: state u32, world size u32, one f64 heartbeat per rank (CLOCK_MONOTONIC seconds), then the reason: length
u32 and UTF-8 text.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from ctypes import c_double
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

STALE_AFTER_SECONDS = 7.0
"""Age of a heartbeat in seconds beyond which a rank counts as stuck."""
IDLE_BEAT_SECONDS = 2.0
"""Seconds between two heartbeats of an idle engine."""

_HEADER = struct.Struct("<II")
_BEAT = struct.Struct("<d")
_REASON_BYTES = 2048
_REASON = struct.Struct(f"<I{_REASON_BYTES}s")


class EngineState(IntEnum):
    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Health:
    """The content of the board at one time."""

    state: EngineState
    reason: str
    """The reason for the state; may be empty."""
    heartbeat_age: float
    """Seconds since the oldest of the ranks' latest heartbeats."""
    copies: tuple[Health, ...] = ()
    """With several copies: the health of each."""

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY and self.heartbeat_age < STALE_AFTER_SECONDS

    def summary(self) -> str:
        """Describe the state to a client, without the reason."""
        if self.state is EngineState.READY and not self.ready:
            return f"the engine has made no progress for {self.heartbeat_age:.0f} s"
        return {
            EngineState.STARTING: "the model is loading",
            EngineState.READY: "ready",
            EngineState.DRAINING: "the server is shutting down",
            EngineState.STOPPED: "the engine has stopped",
            EngineState.FAILED: "the engine has failed",
        }[self.state]

    def describe(self) -> str:
        """Describe the state and its reason to the operator, in one line."""
        return f"{self.summary()}: {self.reason}" if self.reason else self.summary()


class StatusBoard:
    """The shared file. Each rank writes its own heartbeat; rank 0 and the supervisor write the state."""

    def __init__(self, path: Path, world_size: int) -> None:
        self._world_size = world_size
        self._reason_offset = _HEADER.size + _BEAT.size * world_size
        self._path = path
        with path.open("r+b") as file:
            self._inode = os.fstat(file.fileno()).st_ino
            self._map = mmap.mmap(file.fileno(), self._reason_offset + _REASON.size)

    @classmethod
    def create(cls, path: Path, world_size: int) -> StatusBoard:
        """Create a board in state STARTING, readable and writable by the owner only."""
        size = _HEADER.size + _BEAT.size * world_size + _REASON.size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, _HEADER.pack(EngineState.STARTING, world_size).ljust(size, b"\0"))
        finally:
            os.close(descriptor)
        return cls(path, world_size)

    @classmethod
    def open(cls, path: Path) -> StatusBoard:
        with path.open("rb") as file:
            _, world_size = _HEADER.unpack(file.read(_HEADER.size))
        return cls(path, world_size)

    def beat(self, rank: int) -> None:
        """Write a heartbeat: this rank has completed a step, or a layer of a long one."""
        _BEAT.pack_into(self._map, _HEADER.size + _BEAT.size * rank, time.monotonic())

    def heartbeat_view(self, rank: int) -> c_double:
        """Return a view of the shared heartbeat of a rank, in seconds of CLOCK_MONOTONIC, for native code to write."""
        return c_double.from_buffer(self._map, _HEADER.size + _BEAT.size * rank)

    def set_state(self, state: EngineState, reason: str = "") -> None:
        # A reason may quote a file name that is not UTF-8.
        data = reason.encode(errors="replace")[:_REASON_BYTES]
        # Write the text before the state, so that a reader of the new state finds its reason.
        _REASON.pack_into(self._map, self._reason_offset, len(data), data)
        _HEADER.pack_into(self._map, 0, state, self._world_size)

    def read(self) -> Health:
        state, _ = _HEADER.unpack_from(self._map, 0)
        beats = struct.unpack_from(f"<{self._world_size}d", self._map, _HEADER.size)
        length, reason = _REASON.unpack_from(self._map, self._reason_offset)
        age = time.monotonic() - min(beats)
        return Health(EngineState(state), reason[:length].decode(errors="ignore"), age)

    @property
    def is_replaced(self) -> bool:
        """Whether the file was replaced by that of a restarted engine."""
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._map.close()
