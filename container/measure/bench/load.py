"""Load generator: users arrive at their times and send requests one after the other.

Each active user has a thread with a connection. Threads wait for bytes without holding the GIL, and timestamps are
taken when bytes arrive, before they are parsed.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from container.measure.bench.answer import AnswerReader, BadAnswer, TimedOut
from container.measure.bench.arrivals import UserSession
from container.measure.bench.connection import BenchConnection
from container.measure.bench.dialects import Dialect
from container.measure.bench.workload import BenchRequest
from container.measure.numbers import format_number, seconds
from container.progress import ProgressView

_CLOCK_SECONDS = 0.05
"""Interval at which the client checks whether it is late."""
_MAX_THREADS = 1000
"""Maximum number of concurrent users. Requests of further users are sent late, and the report says so."""
_STOP_SECONDS = 1.0
"""Time for all threads together to stop. A thread whose server sends nothing stops only at its request's timeout."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The result of one request. Times are seconds since the start of the run."""

    index: int
    user: int
    scheduled: float
    """Time at which the request was due: the user's start, or the end of the user's previous response."""
    sent: float
    token_times: tuple[float, ...]
    """Arrival time of each token (openai: of each piece of text)."""
    ended: float
    """Time at which the response was complete or abandoned."""
    output_tokens: int
    """Generated tokens, counted by the client if it can count them, else by the server."""
    token_ids: tuple[int, ...]
    """Generated token ids; empty if the dialect has none."""
    prompt_tokens: int | None
    """The server's count of prompt tokens; None if not reported."""
    error: str
    """Error text; empty if the request succeeded."""
    timed_out: bool = False
    """Whether the request failed because it timed out."""

    @property
    def ttft(self) -> float:
        """Seconds from the time the request was due to its first token; NaN without a token."""
        return self.token_times[0] - self.scheduled if self.token_times else math.nan

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first; NaN for fewer than two tokens."""
        if not self.token_times or self.output_tokens < 2:
            return math.nan
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds from the time the request was due to its end."""
        return self.ended - self.scheduled


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a whole run."""

    outcomes: tuple[RequestOutcome, ...]
    """Outcomes in the order of the requests."""
    wall_seconds: float
    client_cpu_seconds: float
    """CPU time of this process, over all threads."""
    worst_lag_seconds: float
    """Largest delay caused by the client: of sending a request that was due, or of a timed wait."""


def run_load(
    url: str,
    dialect: Dialect,
    sessions: Sequence[UserSession],
    timeout: float,
    on_done: Callable[[RequestOutcome], None],
    headers: Mapping[str, str] | None = None,
) -> LoadRun:
    """Run the sessions of all users and return when all requests have ended.

    Args:
        url: the server's URL, without the dialect's path.
        sessions: at least one, ordered by start.
        timeout: time limit of one request, in seconds.
        on_done: called in the calling thread for each request that ended, failed ones included.
        headers: extra headers sent with each request.

    A failed request gives an outcome with an error, never an exception.
    """
    named = dialect.for_server(url)
    threads = _SessionThreads(sessions, lambda: BenchConnection(url, named, timeout, headers))
    cpu_before = time.process_time()
    threads.start()
    try:
        outcomes, worst_late = _collect(
            threads.ended, sum(len(session.requests) for session in sessions), on_done
        )
    finally:
        threads.stop()
    return LoadRun(
        outcomes=tuple(sorted(outcomes, key=lambda outcome: outcome.index)),
        wall_seconds=max(outcome.ended for outcome in outcomes),
        client_cpu_seconds=time.process_time() - cpu_before,
        worst_lag_seconds=max(worst_late, *(outcome.sent - outcome.scheduled for outcome in outcomes)),
    )


def run_with_progress(
    url: str,
    dialect: Dialect,
    sessions: Sequence[UserSession],
    timeout: float,
    view: ProgressView,
    title: str,
    headers: Mapping[str, str] | None = None,
) -> LoadRun:
    """Run the load as `run_load` does, and show the progress in `view`."""
    total = sum(len(session.requests) for session in sessions)
    live = _LiveFigures()
    view.start(title)

    def on_done(outcome: RequestOutcome) -> None:
        live.add(outcome)
        view.update(live.num_ended, total, live.describe())

    try:
        return run_load(url, dialect, sessions, timeout, on_done, headers)
    finally:
        view.finish()


class _LiveFigures:
    """Figures of the requests that have ended."""

    def __init__(self) -> None:
        self.num_ended = 0
        self._num_failed = 0
        self._tokens = 0
        self._ttfts: list[float] = []
        """Sorted."""
        self._last = 0.0

    def add(self, outcome: RequestOutcome) -> None:
        self.num_ended += 1
        self._num_failed += bool(outcome.error)
        self._tokens += outcome.output_tokens
        self._last = max(self._last, outcome.ended)
        if outcome.token_times:
            insort(self._ttfts, outcome.ttft)

    def describe(self) -> str:
        rate = self._tokens / self._last if self._last else 0.0
        ttft = f", TTFT p50 {seconds(self._ttfts[len(self._ttfts) // 2])}" if self._ttfts else ""
        return f"{format_number(rate)} tokens/s{ttft}, {self._num_failed} failed"


class _SessionThreads:
    """Thread pool that runs sessions.

    One thread takes the next session and waits for its start, while another thread stands by for the session after it.
    Sessions therefore start on time however long earlier ones take, and the pool grows only as they overlap.
    """

    def __init__(self, sessions: Sequence[UserSession], connect: Callable[[], BenchConnection]) -> None:
        self.ended: queue.SimpleQueue[RequestOutcome | BaseException] = queue.SimpleQueue()
        """Outcomes of requests, and the exception of a thread that failed."""
        self._sessions = sessions
        self._next = iter(enumerate(sessions))
        self._connect = connect
        self._most_threads = min(_MAX_THREADS, len(sessions))
        self._threads: list[threading.Thread] = []
        self._start_lock = threading.Lock()
        """Held by the thread that waits for the next session's start."""
        self._num_waiting = 0
        """Number of threads that wait for `_start_lock`."""
        self._counting = threading.Lock()
        self._started = threading.Event()
        self._stopped = threading.Event()
        self._start = 0.0

    def start(self) -> None:
        """Start the clock, after creating the threads of all sessions that are due at once."""
        with self._start_lock:
            for _ in range(min(self._most_threads, sum(session.start <= 0 for session in self._sessions))):
                self._add_thread()
        self._start = time.perf_counter()
        self._started.set()

    def stop(self) -> None:
        """Stop all threads, which send no more requests and stop reading, and wait a moment for them to end."""
        self._stopped.set()
        self._started.set()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _now(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"user-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        connection = self._connect()
        try:
            self._started.wait()
            while (taken := self._take()) is not None:
                user, session = taken
                due = session.start
                for request in session.requests:
                    if self._stopped.is_set():
                        return
                    outcome = self._send(user, request, connection, due)
                    self.ended.put(outcome)
                    due = outcome.ended
        except BaseException as error:
            self.ended.put(error)
        finally:
            connection.close()

    def _take(self) -> tuple[int, UserSession] | None:
        """Wait until the next session is due, and return its user and the session; None at the end or after `stop`."""
        with self._counting:
            self._num_waiting += 1
        with self._start_lock:
            with self._counting:
                self._num_waiting -= 1
                alone = not self._num_waiting
            taken = next(self._next, None)
            if taken is None or self._stopped.is_set():
                return None
            if alone and len(self._threads) < self._most_threads:
                self._add_thread()
            user, session = taken
            return None if self._stopped.wait(max(0.0, session.start - self._now())) else (user, session)

    def _send(
        self, user: int, request: BenchRequest, connection: BenchConnection, scheduled: float
    ) -> RequestOutcome:
        answer = AnswerReader(connection.dialect)
        error = ""
        timed_out = False
        body = connection.dialect.body(request)
        sent = self._now()
        try:
            with closing(connection.post(body)) as pieces:
                for data in pieces:
                    answer.feed(data, self._now())
                    if self._stopped.is_set():
                        raise BadAnswer("stopped")
            answer.finish(self._now())
        except BadAnswer as bad:
            error = str(bad)
            timed_out = isinstance(bad, TimedOut)
        return RequestOutcome(
            index=request.index,
            user=user,
            scheduled=scheduled,
            sent=sent,
            token_times=tuple(answer.token_times),
            ended=self._now(),
            output_tokens=answer.output_tokens,
            token_ids=tuple(answer.token_ids),
            prompt_tokens=answer.prompt_tokens,
            error=error,
            timed_out=timed_out,
        )


def _collect(
    ended: queue.SimpleQueue[RequestOutcome | BaseException],
    num_requests: int,
    on_done: Callable[[RequestOutcome], None],
) -> tuple[list[RequestOutcome], float]:
    """Collect all outcomes, and measure the largest delay of a timed wait in this thread, in seconds.

    The threads of the users wait under the same conditions: the same GIL and the same cores.
    """
    outcomes: list[RequestOutcome] = []
    worst_late = 0.0
    while len(outcomes) < num_requests:
        began = time.perf_counter()
        try:
            outcome = ended.get(timeout=_CLOCK_SECONDS)
        except queue.Empty:
            worst_late = max(worst_late, time.perf_counter() - began - _CLOCK_SECONDS)
            continue
        if isinstance(outcome, BaseException):
            raise RuntimeError("internal error in the load client; its exception is above") from outcome
        outcomes.append(outcome)
        on_done(outcome)
    return outcomes, worst_late
