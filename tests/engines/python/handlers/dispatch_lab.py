"""The dispatcher of a handler with scripted clients and workers, and a fake clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from greenlet import getcurrent, greenlet

from engines.core import EngineInfo
from engines.health import IDLE_BEAT_SECONDS, StatusBoard
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from engines.python.handlers.dispatch import HandlerDispatch
from engines.python.handlers.messages import Answered, CallDone, FromWorker
from engines.python.messages import CannotLoad, Ready
from engines.python.worker_process import WorkerProcessEnded
from engines.wire import InvocationOutputs, Invoke, ToClient, ToEngine
from tests.engines.mpi.fakes import CLIENT
from tests.engines.python.fakes import Clock
from tests.support.handler_engine import handler_config

Turn = Sequence[tuple[bytes, ToEngine]]


class FakeWorker:
    """A scripted worker."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[list[str]] = []
        """Request ids of each call."""
        self.forgotten: list[str] = []
        self.restarts = 0
        self.restart_error: OSError | None = None
        """What a restart raises."""
        self.closed = False
        self._messages: deque[FromWorker | None] = deque()

    def ready(self, accepts_concurrent_calls: bool = True, takes_batches: bool = True) -> None:
        """Report that the handler is loaded. A handler that accepts concurrent calls is asynchronous."""
        self._messages.append(Ready("cpu", {}, accepts_concurrent_calls, takes_batches))

    def cannot_load(self) -> None:
        self._messages.append(CannotLoad("RuntimeError: out of memory"))

    def answer(self, name: str) -> None:
        """Send the whole response, and end the call."""
        self.respond(name)
        self.end_call(name)

    def respond(self, name: str) -> None:
        self._messages.append(Answered([InvocationOutput(name, AnswerHead(200, "OK", ()), last=True)]))

    def end_call(self, name: str) -> None:
        self._messages.append(CallDone([name]))

    def begin(self, name: str) -> None:
        """Send the first part of a response."""
        self._messages.append(Answered([InvocationOutput(name, AnswerHead(200, "OK", ()), b"x")]))

    def end(self) -> None:
        """Let the process exit by itself."""
        self._messages.append(None)

    def fileno(self) -> int:
        return self.number

    def receive(self, timeout: float) -> Iterator[FromWorker]:
        while self._messages:
            if (message := self._messages.popleft()) is None:
                raise WorkerProcessEnded("it ended")
            yield message

    def run(self, batch: list[Invocation]) -> None:
        self.calls.append([invocation.id for invocation in batch])

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)

    def kill(self) -> None:
        self._messages.clear()

    def restart(self) -> None:
        if self.restart_error is not None:
            raise self.restart_error
        self.restarts += 1
        self.calls = []

    def close(self) -> None:
        self.closed = True


class Lab:
    """A dispatcher whose loop the test runs turn by turn, its workers and its only client."""

    def __init__(self, tmp_path: Path, num_workers: int, timeout: float = 30.0, **batching: int) -> None:
        """batching: settings of the queue and of batches."""
        self.clock = Clock()
        self.workers: list[FakeWorker] = []
        self.errors: dict[str, str] = {}
        """Error kind of each finished request. Empty on success."""
        self.messages: dict[str, str] = {}
        """Error message of each finished request."""
        self.client_is_gone = False
        self.watched: list[int] = []
        self.start_error: OSError | None = None
        """What the start of a worker raises."""
        config = handler_config("plain", batch_timeout=timeout, min_workers=num_workers, **batching)
        settings = replace(config.handler, max_workers=num_workers + 1)
        self.loading_timeout, self.max_idle_seconds = settings.loading_timeout, settings.max_idle_seconds
        info = EngineInfo("m", "Handler", 1, "cpu", "", 0, 0, 0, 1, 0, False)
        self.board = StatusBoard.create(tmp_path / "status", 1)
        self.dispatch = HandlerDispatch(
            replace(config, handler=settings),
            info,
            self._start,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.board,
            self.clock,
        )
        self._test = getcurrent()
        self._loop = greenlet(self.dispatch.serve)
        self._loop.switch()

    def turn(self, messages: Turn = ()) -> None:
        """Let the dispatcher's loop run one turn with these messages."""
        self._loop.switch(messages)

    def wait(self, seconds: float) -> None:
        """Let time pass, with turns without messages as often as the loop wakes. The next turn is left to the test."""
        end = self.clock.now + seconds
        while end - self.clock.now > IDLE_BEAT_SECONDS:
            self.clock.now += IDLE_BEAT_SECONDS
            self.turn()
        self.clock.now = end

    def _start(self, number: int) -> FakeWorker:
        if self.start_error is not None:
            raise self.start_error
        self.workers.append(FakeWorker(number))
        return self.workers[-1]

    # The engine socket, as the dispatcher sees it

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        yield from self._test.switch()

    def send(self, client: bytes, message: ToClient) -> bool:
        assert isinstance(message, InvocationOutputs)
        for output in message.outputs:
            if output.finished:
                assert output.id not in self.errors, "an output after the last one"
                self.errors[output.id] = output.error_kind
                self.messages[output.id] = output.error_message
        return not self.client_is_gone

    def watch(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.watched.remove(descriptor)


def invoke(*names: str) -> Turn:
    return [(CLIENT, Invoke(Invocation(name, 0.0, {}, (("data", b"x"),)))) for name in names]
