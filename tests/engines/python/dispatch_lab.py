"""A dispatcher with scripted clients and a scripted generating process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.config import BatchConfig, ModelSettings, ParallelConfig, PythonEngineConfig
from engines.core import EngineInfo, EngineStats, Request
from engines.health import StatusBoard
from engines.python.batcher import DynamicBatcher
from engines.python.dispatch import Dispatch
from engines.wire import (
    Reply,
    Submit,
    ToEngine,
)
from tests.engines.mpi.fakes import CLIENT, expected_output, make_request
from tests.engines.python.fakes import Clock, ClockedSocket, FakeGenerator

INFO = EngineInfo("m", "Python", 1, "cpu", "fp32", 0, 0, 0, 4, 64, False)
TWO = b"web process 2"
DELAY = 0.1
TIMEOUT = 30.0
Turn = list[tuple[bytes, ToEngine]]


class Lab:
    def __init__(self, tmp_path: Path, batch_size: int = 4, max_waiting: int = 100, **generator: Any) -> None:
        self.clock = Clock()
        self.config = PythonEngineConfig(
            ModelSettings("/model", "m", "fp32", 64),
            ParallelConfig(),
            BatchConfig(batch_size, DELAY, max_waiting, TIMEOUT),
        )
        self.generator = FakeGenerator(self.clock, **generator)
        self.board = StatusBoard.create(tmp_path / "status", 2)

    def serve(self, *script: Turn, **options: Any) -> ClockedSocket:
        socket = ClockedSocket(list(script), clock=self.clock, generator=self.generator, **options)
        batcher = DynamicBatcher(self.config.batching)
        doubles: list[Any] = [self.generator, socket]
        Dispatch(self.config, INFO, batcher, *doubles, self.board, 1.0, self.clock).serve()
        assert socket.watched == []
        return socket


def submit(*requests: Request, client: bytes = CLIENT) -> Turn:
    """Submit each request by itself."""
    return [(client, Submit((request,))) for request in requests]


def pauses(count: int) -> list[Turn]:
    return [[] for _ in range(count)]


def check_output(socket: ClockedSocket, request: Request) -> None:
    expected, reason = expected_output(request)
    assert socket.tokens(request.id) == expected
    assert socket.outputs[request.id][-1].finish_reason is reason
    assert not any(output.error_kind for output in socket.outputs[request.id])


def read_stats(socket: ClockedSocket) -> EngineStats:
    return [message.content for _, message in socket.sent if isinstance(message, Reply)][-1]


def make_requests(count: int, tokens: int = 4) -> list[Request]:
    return [make_request(f"r{i}", range(i + 1), tokens) for i in range(count)]
