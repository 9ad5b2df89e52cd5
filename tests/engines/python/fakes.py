"""Fakes for tests of the dispatcher's loop: engine socket, generating process and clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engines.core import FinishReason, Request, RequestOutput
from engines.python.messages import BatchDone, BatchWaste, CallStarted, FromGenerator, Ready, StepDone
from engines.python.worker_process import WorkerProcessEnded
from engines.wire import Drain, ToEngine
from tests.engines.mpi.fakes import CLIENT, ScriptedSocket, expected_output


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeGenerator:
    """A generating process that computes one token of `expected_output` for each request in steps of `step_seconds`.

    `dies_after` has one entry for each of the first batches: the number of steps after which the process dies, or None.
    `stuck_after` has the same format; the process hangs. After a restart the process is ready once `receive` was
    called `reload_polls` times.
    """

    clock: Clock
    step_seconds: float = 0.25
    dies_after: list[int | None] = field(default_factory=list)
    stuck_after: list[int | None] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Requests of each further call of `generate`, by the step before which it starts."""
    reload_polls: int = 1
    poison: tuple[int, ...] | None = None
    """Prompt that kills the process."""
    num_idle_crashes: int = 0
    """Number of times that the process dies while idle."""
    forgets_after_restart: int = 0
    """Number of tokens of each output that differ after a restart."""
    batches: list[list[str]] = field(default_factory=list)
    left_at: list[float] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    num_kills: int = 0
    num_restarts: int = 0
    descriptor: int = 100
    _batch: dict[str, Request] = field(default_factory=dict)
    _step: int = 0
    _dies: int | None = None
    _sticks: int | None = None
    _loading: int = 0
    _running: bool = False
    _dead: bool = False
    _stuck: bool = False

    @property
    def has_news(self) -> bool:
        return self._dead or self._loading == 1 or (self._running and not self._stuck)

    def fileno(self) -> int:
        return self.descriptor

    def run(self, requests: list[Request]) -> None:
        assert not self._running, "one batch at a time"
        assert not self._loading, "the model is not loaded"
        self.batches.append([request.id for request in requests])
        self.left_at.append(self.clock.now)
        self._batch = {request.id: request for request in requests}
        self._step, self._running = 0, True
        self._dies = self.dies_after.pop(0) if self.dies_after else None
        if self.poison in [tuple(request.prompt_token_ids) for request in requests]:
            self._dies = 0
        self._sticks = self.stuck_after.pop(0) if self.stuck_after else None

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)
        self._batch.pop(request_id, None)

    def receive(self, timeout: float) -> Iterator[FromGenerator]:
        assert timeout == 0.0
        if self.num_idle_crashes and not self._loading:
            self.num_idle_crashes -= 1
            self._dead = True
        if self._dead or (self._running and self._step == self._dies):
            self._dead = True
            raise WorkerProcessEnded("it was killed by SIGKILL")
        if self._loading:
            self._loading -= 1
            if not self._loading:
                yield Ready("cpu", {})
        elif self._running:
            if self._step in self.calls:
                yield CallStarted(self.calls.pop(self._step))
            self._stuck = self._step == self._sticks
            if not self._stuck:
                yield from self._compute()

    def _compute(self) -> Iterator[FromGenerator]:
        self.clock.now += self.step_seconds
        outputs = [self._output(request) for request in self._batch.values()]
        for output in outputs:
            if output.finished:
                del self._batch[output.id]
        self._step += 1
        if outputs:
            yield StepDone(outputs)
        if not self._batch:
            self._running = False
            yield BatchDone(BatchWaste(3, 5))

    def _output(self, request: Request) -> RequestOutput:
        tokens, reason = expected_output(request)
        if self.num_restarts:
            tokens = [token + (i < self.forgets_after_restart) for i, token in enumerate(tokens)]
        last: FinishReason | None = reason if self._step + 1 == len(tokens) else None
        return RequestOutput(request.id, (tokens[self._step],), finish_reason=last)

    def kill(self) -> None:
        self.num_kills += 1
        self._dead = True

    def restart(self) -> None:
        self.num_restarts += 1
        self.descriptor += 1
        self._dead = self._stuck = self._running = False
        self._loading = self.reload_polls
        self._batch = {}


@dataclass
class ClockedSocket(ScriptedSocket):
    """An engine socket whose clock advances by the timeout, unless the generating process has messages."""

    clock: Clock = field(default_factory=Clock)
    generator: FakeGenerator | None = None
    watched: list[int] = field(default_factory=list)
    drain_sent: bool = False
    refusals: list[tuple[bytes, RequestOutput]] = field(default_factory=list)
    jumps: dict[int, float] = field(default_factory=dict)
    """Seconds by which the clock jumps, by the number of turns before."""

    def record(self, client: bytes, outputs: list[RequestOutput]) -> None:
        kinds = ("invalid_request", "too_many_outputs", "overloaded")
        refused = [output for output in outputs if output.error_kind in kinds]
        self.refusals += [(client, output) for output in refused]
        super().record(client, [output for output in outputs if output not in refused])

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        self.clock.now += self.jumps.get(len(self.timeouts), 0.0)
        turn = self.script[0] if self.script else None
        if turn is None and not self.drain_sent:
            self.drain_sent = True
            turn = [(CLIENT, Drain(60.0))]
        if not (turn or (self.generator is not None and self.generator.has_news)):
            self.clock.now += timeout
        self.timeouts.append(timeout)
        yield from turn or ()
        if self.script:
            self.script.pop(0)

    def watch(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.watched.remove(descriptor)
