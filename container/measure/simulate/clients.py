"""Clients in virtual time, in place of the web processes: send the requests of a load and record the responses."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count

from container.measure.bench.arrivals import UserSession
from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.workload import BenchRequest
from container.measure.simulate.clock import VirtualClock
from engines.core import AbortReason, EngineStats, Request, RequestOutput, SamplingParams
from engines.engine_socket import EngineSocket
from engines.wire import Abort, Drain, GetStats, Outputs, Reply, Submit, ToClient, ToEngine

ARRIVAL_SECONDS = 0.005
"""Time from when a request is due until it reaches the engine: client, network, web process and tokenizer.

The delay decides which step a request joins. A user's next request is due at the end of a step, and the engine starts
the following step at once. Measured on two cores that the engine kept busy: 3 to 12 ms.
"""
_CLIENT = b"virtual"


@dataclass(slots=True)
class _Answer:
    """A request in progress."""

    request: BenchRequest
    user: int
    place: int
    """Index in the user's session."""
    due: float
    token_times: list[float] = field(default_factory=list)


class VirtualSocket(EngineSocket):
    """The engine's socket in virtual time. Ends the engine's loop when all requests have ended.

    Requests arrive as token ids, `ARRIVAL_SECONDS` after they were due. Writing responses takes no time.
    """

    def __init__(
        self,
        clock: VirtualClock,
        sessions: Sequence[UserSession],
        prompt: Callable[[BenchRequest], tuple[int, ...]],
        timeout: float,
        server_timeout: float,
        on_done: Callable[[RequestOutcome], None],
    ) -> None:
        """sessions: as for `run_load`. prompt: returns the token ids of a request.

        timeout: seconds after which the client disconnects. server_timeout: seconds after which the server ends a
        request.
        """
        self.next_event: Callable[[], float] = lambda: math.inf
        """Returns the time of the next other event that the engine waits for."""
        self.stats: EngineStats | None = None
        """The engine's counters after all requests."""
        self._clock = clock
        self._sessions = sessions
        self._prompt = prompt
        self._timeout = timeout
        self._server_timeout = server_timeout
        self._on_done = on_done
        self._order = count()
        self._arrivals: list[tuple[float, int, int, int, float]] = []
        """Heap of (arrival at the engine, order, user, index in the session, due time)."""
        self._timeouts: list[tuple[float, str]] = []
        """Heap of (time, request id): when requests time out, including requests that have ended since."""
        self._answers: dict[str, _Answer] = {}
        self._outcomes: list[RequestOutcome] = []
        for user, session in enumerate(sessions):
            self._schedule(user, 0, session.start)

    def run(self) -> LoadRun:
        """Return the result. Call after the engine's loop has ended."""
        return LoadRun(
            outcomes=tuple(sorted(self._outcomes, key=lambda outcome: outcome.index)),
            wall_seconds=max(outcome.ended for outcome in self._outcomes),
            client_cpu_seconds=0.0,
            worst_lag_seconds=0.0,
        )

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        """Advance the clock to the next event, by at most `timeout`, and yield the messages that are due."""
        clock = self._clock
        if timeout > 0 and (self._arrivals or self._answers):
            clock.advance_to(min(clock.now + timeout, self._next_time(), self.next_event()))
        now = clock.now
        while self._arrivals and self._arrivals[0][0] <= now:
            arrival, _, user, place, due = heapq.heappop(self._arrivals)
            yield _CLIENT, Submit((self._submit(user, place, due, arrival),))
        while self._timeouts and self._timeouts[0][0] <= now:
            moment, request_id = heapq.heappop(self._timeouts)
            answer = self._answers.get(request_id)
            if answer is not None:
                self._end(answer, moment, f"no complete response within {self._timeout:g} s", timed_out=True)
                yield _CLIENT, Abort(request_id, AbortReason.CLIENT_LEFT)
        if not self._arrivals and not self._answers:
            yield _CLIENT, GetStats(0)
            yield _CLIENT, Drain(0.0)

    def send(self, client: bytes, message: ToClient) -> bool:
        match message:
            case Outputs(outputs):
                self._record(outputs)
            case Reply(content=EngineStats() as stats):
                self.stats = stats
        return True

    def watch(self, descriptor: int) -> None:
        """Do nothing: `next_event` replaces descriptors."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _record(self, outputs: list[RequestOutput]) -> None:
        now, answers = self._clock.now, self._answers
        for output in outputs:
            answer = answers.get(output.id)
            if answer is None or now > answer.due + self._timeout:
                continue  # the client has disconnected, which `receive` may not have recorded yet
            if output.token_ids:
                answer.token_times.append(now)
            if output.finish_reason is not None or output.error_kind:
                self._end(answer, now, output.error_message)

    def _next_time(self) -> float:
        while self._timeouts and self._timeouts[0][1] not in self._answers:
            heapq.heappop(self._timeouts)
        return min(heap[0][0] for heap in (self._arrivals, self._timeouts) if heap)

    def _schedule(self, user: int, place: int, due: float) -> None:
        if place < len(self._sessions[user].requests):
            heapq.heappush(self._arrivals, (due + ARRIVAL_SECONDS, next(self._order), user, place, due))

    def _submit(self, user: int, place: int, due: float, arrival: float) -> Request:
        request = self._sessions[user].requests[place]
        request_id = str(request.index)
        self._answers[request_id] = _Answer(request, user, place, due)
        heapq.heappush(self._timeouts, (due + self._timeout, request_id))
        sampling = _sampling(request.output_tokens)
        return Request(request_id, self._prompt(request), sampling, arrival, arrival + self._server_timeout)

    def _end(self, answer: _Answer, now: float, error: str, timed_out: bool = False) -> None:
        request = answer.request
        del self._answers[str(request.index)]
        outcome = RequestOutcome(
            index=request.index,
            user=answer.user,
            scheduled=answer.due,
            sent=answer.due,
            token_times=tuple(answer.token_times),
            ended=now,
            output_tokens=len(answer.token_times),
            token_ids=(),
            prompt_tokens=None,
            error=error,
            timed_out=timed_out,
        )
        self._outcomes.append(outcome)
        self._on_done(outcome)
        self._schedule(answer.user, answer.place + 1, now)


@cache
def _sampling(output_tokens: int) -> SamplingParams:
    """Return parameters for greedy sampling that ignores EOS."""
    return SamplingParams(output_tokens)
