"""The supervisor's connection to the engine: statistics, scheduler settings, and the drain command."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Self

import zmq

from engines.core import EngineStats, SchedulerReply, SettingValue
from engines.wire import ConfigureScheduler, Drain, GetStats, Reply, decode_to_client, encode

_POLL_MS = 100


class EngineControl:
    """A ZeroMQ DEALER socket on the engine's address. A context manager; not thread-safe."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)
        self._tokens = itertools.count()

    def drain(self, seconds: float) -> None:
        """Tell the engine to stop within `seconds`. Does not wait."""
        self._socket.send(encode(Drain(seconds)))

    def stats(self, timeout: float, keep_waiting: Callable[[], bool]) -> EngineStats | None:
        """Return the engine's statistics; None if the engine does not reply within `timeout` seconds.

        Also returns None when `keep_waiting` returns False: a dead engine must not delay the supervisor.
        """
        reply = self._ask(GetStats(next(self._tokens)), timeout, keep_waiting)
        return reply if isinstance(reply, EngineStats) else None

    def scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float, keep_waiting: Callable[[], bool]
    ) -> SchedulerReply | None:
        """Change scheduler settings, all or none, and return the engine's reply. `changes` may be empty.

        Returns None if the engine does not reply (see `stats`).
        """
        reply = self._ask(ConfigureScheduler(next(self._tokens), dict(changes)), timeout, keep_waiting)
        return reply if isinstance(reply, SchedulerReply) else None

    def _ask(
        self, question: GetStats | ConfigureScheduler, timeout: float, keep_waiting: Callable[[], bool]
    ) -> EngineStats | SchedulerReply | None:
        self._socket.send(encode(question))
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and keep_waiting():
            if not self._socket.poll(_POLL_MS):
                continue
            message = decode_to_client(self._socket.recv())
            if isinstance(message, Reply) and message.token == question.token:
                return message.content
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(linger=0)
        self._context.term()
