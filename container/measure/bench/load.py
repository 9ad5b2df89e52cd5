"""A closed loop of users: each sends its next request as soon as it has the whole answer to the one before.

A user is a thread with a connection of its own that is kept alive. Threads wait for bytes without holding the
interpreter's lock, and a time is taken right when bytes have come, before they are read.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from container.measure.bench.answer import Answer, BadAnswer
from container.measure.bench.connection import Connection
from container.measure.bench.dialects import Dialect
from container.measure.bench.workload import BenchRequest

_CLOCK_SECONDS = 0.05
"""How often the clock looks whether it is late."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Times are seconds since the run's start."""

    index: int
    user: int
    scheduled: float
    """When it was to be sent: at the start, else when the user's answer before was complete."""
    sent: float
    """When it was sent."""
    token_times: tuple[float, ...]
    """When each token arrived (openai: each piece of text)."""
    ended: float
    """When the answer was complete, or given up."""
    output_tokens: int
    """Tokens that were generated: as counted here, or as the server says where only it knows."""
    token_ids: tuple[int, ...]
    """Empty where the dialect has none."""
    prompt_tokens: int | None
    """As the server counted them; None where it does not say."""
    error: str
    """Empty when all is well."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A whole run."""

    outcomes: tuple[Outcome, ...]
    """In the order of the requests."""
    wall_seconds: float
    client_cpu_seconds: float
    """Processor time of this whole process, all its threads."""
    worst_lag_seconds: float
    """The longest that the client itself was late: a send after its time, or a wake-up of its clock thread."""


def run_load(
    url: str,
    dialect: Dialect,
    requests: Sequence[BenchRequest],
    num_users: int,
    timeout: float,
    on_done: Callable[[], None],
) -> LoadRun:
    """Send all requests; request i (by place) belongs to user i % num_users. Returns when all have ended.

    Args:
        url: the server's, without the dialect's path.
        timeout: seconds that one request may take as a whole.
        on_done: called in the caller's thread for each request that ended, in whatever way.

    A request that fails is an outcome with an error, never an exception.
    """
    start = _Start()
    ended: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
    threads = []
    for number in range(min(num_users, len(requests))):
        user = _User(number, requests[number::num_users], Connection(url, dialect, timeout), start, ended)
        threads.append(threading.Thread(target=user.run, name=f"user-{number}", daemon=True))
    for thread in threads:
        thread.start()
    cpu_before = time.process_time()
    start.give()
    try:
        outcomes, worst_late = _collect(ended, len(requests), len(threads), on_done)
    finally:
        start.call_off()
    for thread in threads:
        thread.join()
    return LoadRun(
        outcomes=tuple(sorted(outcomes, key=lambda outcome: outcome.index)),
        wall_seconds=max(outcome.ended for outcome in outcomes),
        client_cpu_seconds=time.process_time() - cpu_before,
        worst_lag_seconds=max(worst_late, *(outcome.sent - outcome.scheduled for outcome in outcomes)),
    )


class _Start:
    """The common start of all users, and their clock."""

    def __init__(self) -> None:
        self._given = threading.Event()
        self._at = 0.0
        self.called_off = False

    def give(self) -> None:
        self._at = time.perf_counter()
        self._given.set()

    def wait(self) -> None:
        self._given.wait()

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._at

    def call_off(self) -> None:
        """No user sends anything more, and none reads on."""
        self.called_off = True


class _User:
    """Sends its requests one after the other. Runs in a thread of its own."""

    def __init__(
        self,
        number: int,
        requests: Sequence[BenchRequest],
        connection: Connection,
        start: _Start,
        ended: queue.SimpleQueue[Outcome | None],
    ) -> None:
        self._number = number
        self._requests = requests
        self._connection = connection
        self._start = start
        self._ended = ended

    def run(self) -> None:
        """None in the queue says that this user is gone, whatever the reason."""
        try:
            self._start.wait()
            scheduled = 0.0
            for request in self._requests:
                if self._start.called_off:
                    return
                outcome = self._ask(request, scheduled)
                self._ended.put(outcome)
                scheduled = outcome.ended
        finally:
            self._ended.put(None)
            self._connection.close()

    def _ask(self, request: BenchRequest, scheduled: float) -> Outcome:
        dialect = self._connection.dialect
        answer = Answer(dialect)
        error = ""
        now = self._start.now
        body = dialect.body(request)
        sent = now()
        try:
            with closing(self._connection.post(body)) as pieces:
                for data in pieces:
                    answer.feed(data, now())
                    if self._start.called_off:
                        raise BadAnswer("called off")
            answer.finish(now())
        except BadAnswer as bad:
            error = str(bad)
        return Outcome(
            index=request.index,
            user=self._number,
            scheduled=scheduled,
            sent=sent,
            token_times=tuple(answer.token_times),
            ended=now(),
            output_tokens=answer.output_tokens,
            token_ids=tuple(answer.token_ids),
            prompt_tokens=answer.prompt_tokens,
            error=error,
        )


def _collect(
    ended: queue.SimpleQueue[Outcome | None], num_requests: int, num_users: int, on_done: Callable[[], None]
) -> tuple[list[Outcome], float]:
    """All outcomes as they come, and the longest that this thread woke up after the time it had asked for, in seconds.

    It wakes under the same conditions as the users do: the same lock, the same processors.
    """
    outcomes: list[Outcome] = []
    worst_late = 0.0
    while len(outcomes) < num_requests:
        if not num_users:
            raise RuntimeError("a user ended before its requests did; what it raised stands above")
        asked = time.perf_counter()
        try:
            outcome = ended.get(timeout=_CLOCK_SECONDS)
        except queue.Empty:
            worst_late = max(worst_late, time.perf_counter() - asked - _CLOCK_SECONDS)
            continue
        if outcome is None:
            num_users -= 1
        else:
            outcomes.append(outcome)
            on_done()
    return outcomes, worst_late
