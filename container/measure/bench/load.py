"""A closed loop of users: each sends its next request as soon as the last one is answered.

A user is a thread with a connection of its own. Threads wait for bytes without holding the interpreter's lock, and the
time is taken when bytes arrive, before they are parsed.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from container.measure.bench.answer import AnswerReader, BadAnswer
from container.measure.bench.connection import BenchConnection
from container.measure.bench.dialects import Dialect
from container.measure.bench.workload import BenchRequest
from container.progress import ProgressView

_CLOCK_SECONDS = 0.05
"""Interval at which the client checks whether it is late."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The result of one request. Times are seconds since the start of the run."""

    index: int
    user: int
    scheduled: float
    """When it was due: at the start, or when the user's last answer was complete."""
    sent: float
    """When it was sent."""
    token_times: tuple[float, ...]
    """When each token arrived (openai: each piece of text)."""
    ended: float
    """When the answer was complete, or given up."""
    output_tokens: int
    """Generated tokens, counted here or, where only it knows, by the server."""
    token_ids: tuple[int, ...]
    """Empty if the dialect has none."""
    prompt_tokens: int | None
    """The server's count; None if it does not report it."""
    error: str
    """Empty if it succeeded."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A whole run."""

    outcomes: tuple[RequestOutcome, ...]
    """In the order of the requests."""
    wall_seconds: float
    client_cpu_seconds: float
    """Processor time of this whole process, all its threads."""
    worst_lag_seconds: float
    """Largest delay of the client itself: of a request that was due, or of a timed wait."""


def run_load(
    url: str,
    dialect: Dialect,
    requests: Sequence[BenchRequest],
    num_users: int,
    timeout: float,
    on_done: Callable[[], None],
) -> LoadRun:
    """Send all requests; request i belongs to user i % num_users. Returns when all have ended.

    Args:
        url: the server's, without the dialect's path.
        timeout: time limit of one request, seconds.
        on_done: called in this thread for each request that ended, also for failed ones.

    A failed request is an outcome with an error, never an exception.
    """
    clock = _UserClock()
    ended: queue.SimpleQueue[RequestOutcome | None] = queue.SimpleQueue()
    threads = []
    for user in range(min(num_users, len(requests))):
        connection = BenchConnection(url, dialect, timeout)
        arguments = (user, requests[user::num_users], connection, clock, ended)
        threads.append(threading.Thread(target=_run_user, args=arguments, name=f"user-{user}", daemon=True))
    for thread in threads:
        thread.start()
    cpu_before = time.process_time()
    clock.start()
    try:
        outcomes, worst_late = _collect(ended, len(requests), len(threads), on_done)
    finally:
        clock.stopped = True
    for thread in threads:
        thread.join()
    return LoadRun(
        outcomes=tuple(sorted(outcomes, key=lambda outcome: outcome.index)),
        wall_seconds=max(outcome.ended for outcome in outcomes),
        client_cpu_seconds=time.process_time() - cpu_before,
        worst_lag_seconds=max(worst_late, *(outcome.sent - outcome.scheduled for outcome in outcomes)),
    )


def run_with_progress(
    url: str,
    dialect: Dialect,
    requests: Sequence[BenchRequest],
    num_users: int,
    timeout: float,
    view: ProgressView,
    title: str,
) -> LoadRun:
    """As `run_load`, with a view of the progress."""
    done = itertools.count(1)
    view.start(title)
    try:
        return run_load(
            url, dialect, requests, num_users, timeout, lambda: view.update(next(done), len(requests))
        )
    finally:
        view.finish()


class _UserClock:
    """The common start and clock of all users."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.stopped = False
        """Tells the users to send no more requests and to stop reading."""
        self._start = 0.0

    def start(self) -> None:
        self._start = time.perf_counter()
        self.started.set()

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start


def _run_user(
    user: int,
    requests: Sequence[BenchRequest],
    connection: BenchConnection,
    clock: _UserClock,
    ended: queue.SimpleQueue[RequestOutcome | None],
) -> None:
    """Send requests one after the other; at the end, for whatever reason, put None into the queue."""
    try:
        clock.started.wait()
        scheduled = 0.0
        for request in requests:
            if clock.stopped:
                return
            outcome = _send(user, request, connection, clock, scheduled)
            ended.put(outcome)
            scheduled = outcome.ended
    finally:
        ended.put(None)
        connection.close()


def _send(
    user: int, request: BenchRequest, connection: BenchConnection, clock: _UserClock, scheduled: float
) -> RequestOutcome:
    answer = AnswerReader(connection.dialect)
    error = ""
    body = connection.dialect.body(request)
    sent = clock.now()
    try:
        with closing(connection.post(body)) as pieces:
            for data in pieces:
                answer.feed(data, clock.now())
                if clock.stopped:
                    raise BadAnswer("stopped")
        answer.finish(clock.now())
    except BadAnswer as bad:
        error = str(bad)
    return RequestOutcome(
        index=request.index,
        user=user,
        scheduled=scheduled,
        sent=sent,
        token_times=tuple(answer.token_times),
        ended=clock.now(),
        output_tokens=answer.output_tokens,
        token_ids=tuple(answer.token_ids),
        prompt_tokens=answer.prompt_tokens,
        error=error,
    )


def _collect(
    ended: queue.SimpleQueue[RequestOutcome | None],
    num_requests: int,
    num_users: int,
    on_done: Callable[[], None],
) -> tuple[list[RequestOutcome], float]:
    """All outcomes as they arrive, and the largest delay of a timed wait of this thread, in seconds.

    The users wait under the same conditions: the same interpreter lock, the same processors.
    """
    outcomes: list[RequestOutcome] = []
    worst_late = 0.0
    while len(outcomes) < num_requests:
        if not num_users:
            raise RuntimeError("a user ended before its requests; its exception is above")
        began = time.perf_counter()
        try:
            outcome = ended.get(timeout=_CLOCK_SECONDS)
        except queue.Empty:
            worst_late = max(worst_late, time.perf_counter() - began - _CLOCK_SECONDS)
            continue
        if outcome is None:
            num_users -= 1
        else:
            outcomes.append(outcome)
            on_done()
    return outcomes, worst_late
