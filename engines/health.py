"""Liveness of the engine in a small shared file: written by every rank's step loop, read by `/ping`.

A file in shared memory and not a message: `/ping` must be answered while the engine is busy, stopped or dead.
Layout, little-endian: state u32, world size u32, one f64 heartbeat a rank (CLOCK_MONOTONIC seconds), then the
reason: length u32 and UTF-8 text.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

STALE_AFTER_SECONDS = 7.0
"""A heartbeat older than this means that the step loop of a rank does not move."""
IDLE_BEAT_SECONDS = 2.0
"""How often an idle engine runs through its ranks only to beat."""

_HEADER = struct.Struct("<II")
_BEAT = struct.Struct("<d")
_LENGTH = struct.Struct("<I")
_REASON_BYTES = 2048


class EngineState(IntEnum):
    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Health:
    """One look at the board."""

    state: EngineState
    reason: str
    """Why the state is what it is; may be empty."""
    heartbeat_age: float
    """Seconds since the slowest rank last moved."""

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY and self.heartbeat_age < STALE_AFTER_SECONDS

    def summary(self) -> str:
        """A few words for a client: whether the engine is ready, and no more."""
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
        """One line for the operator: the summary and its reason."""
        return f"{self.summary()}: {self.reason}" if self.reason else self.summary()


class StatusBoard:
    """The shared file. Each rank writes its own heartbeat, rank 0 and the supervisor the state."""

    def __init__(self, path: Path, world_size: int) -> None:
        self._world_size = world_size
        self._reason_offset = _HEADER.size + _BEAT.size * world_size
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._reason_offset + _LENGTH.size + _REASON_BYTES)

    @classmethod
    def create(cls, path: Path, world_size: int) -> StatusBoard:
        """Lay a new board in state STARTING; readable and writable by the owner only."""
        size = _HEADER.size + _BEAT.size * world_size + _LENGTH.size + _REASON_BYTES
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
        """Say that this rank moves: it has completed a step, or a layer of a long one."""
        _BEAT.pack_into(self._map, _HEADER.size + _BEAT.size * rank, time.monotonic())

    def set_state(self, state: EngineState, reason: str = "") -> None:
        # A reason may quote a file name that is no UTF-8.
        data = reason.encode(errors="replace")[:_REASON_BYTES]
        # The text before the state: who sees the new state finds its reason.
        _LENGTH.pack_into(self._map, self._reason_offset, len(data))
        start = self._reason_offset + _LENGTH.size
        self._map[start : start + len(data)] = data
        _HEADER.pack_into(self._map, 0, state, self._world_size)

    def read(self) -> Health:
        state, _ = _HEADER.unpack_from(self._map, 0)
        beats = [
            _BEAT.unpack_from(self._map, _HEADER.size + _BEAT.size * r)[0] for r in range(self._world_size)
        ]
        (length,) = _LENGTH.unpack_from(self._map, self._reason_offset)
        start = self._reason_offset + _LENGTH.size
        reason = bytes(self._map[start : start + min(length, _REASON_BYTES)]).decode(errors="ignore")
        return Health(EngineState(state), reason, time.monotonic() - min(beats))

    def close(self) -> None:
        self._map.close()
