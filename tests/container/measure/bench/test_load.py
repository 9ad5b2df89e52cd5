"""A closed loop of users against a real HTTP server that does what it is told."""

from __future__ import annotations

import math
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from container.measure.bench import load as load_module
from container.measure.bench.arrivals import Burst, OpenLoop, Users
from container.measure.bench.dialects import DIALECTS, Dialect, Record
from container.measure.bench.figures import figures
from container.measure.bench.load import LoadRun, run_load
from container.measure.bench.workload import BenchRequest
from tests.container.measure.bench.conftest import StartScripted, make_bench_requests
from tests.container.measure.bench.scripted_server import FIRST_ID, Script, ScriptedServer

BOTH = pytest.mark.parametrize("dialect", ["lmi", "openai"])


def load(
    server: ScriptedServer | str,
    requests: list[BenchRequest],
    num_users: int = 1,
    dialect: str | Dialect = "lmi",
    timeout: float = 200.0,
) -> LoadRun:
    url = server if isinstance(server, str) else server.url
    speaking = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    sessions = Users(num_users).sessions(requests, 0)
    return run_load(url, speaking, sessions, timeout, lambda outcome: None)


class Telling:
    """A dialect that says when it has read a token: tokens that wait in a socket would be read at the same time."""

    def __init__(self, dialect: str) -> None:
        self._real = DIALECTS[dialect]
        self.name, self.path = self._real.name, self._real.path
        self.pieces_are_tokens = self._real.pieces_are_tokens
        self.tokens_read = threading.Semaphore(0)

    def body(self, request: BenchRequest) -> bytes:
        return self._real.body(request)

    def read(self, line: bytes) -> Record | None:
        record = self._real.read(line)
        if record is not None and record.num_pieces:
            self.tokens_read.release(record.num_pieces)
        return record


@BOTH
def test_every_request_gets_its_whole_answer(scripted: StartScripted, dialect: str) -> None:
    server = scripted()
    requests = make_bench_requests(20, output_tokens=5)
    run = load(server, requests, num_users=4, dialect=dialect)
    assert [outcome.index for outcome in run.outcomes] == list(range(20))
    assert [outcome.error for outcome in run.outcomes] == [""] * 20
    assert {outcome.output_tokens for outcome in run.outcomes} == {5}
    assert {len(outcome.token_times) for outcome in run.outcomes} == {5}
    ids = tuple(range(FIRST_ID, FIRST_ID + 5)) if dialect == "lmi" else ()
    assert {outcome.token_ids for outcome in run.outcomes} == {ids}
    assert {outcome.prompt_tokens for outcome in run.outcomes} == {None if dialect == "lmi" else 3}
    assert {seen.path for seen in server.seen} == {DIALECTS[dialect].path}
    assert figures(run, requests).num_errors == 0


@BOTH
def test_times_are_those_at_which_the_server_wrote(scripted: StartScripted, dialect: str) -> None:
    telling = Telling(dialect)
    server = scripted(
        lambda number, body: Script(first_seconds=0.06, gap_seconds=0.02, read=telling.tokens_read)
    )
    requests = make_bench_requests(3)
    before = time.perf_counter()
    run = load(server, requests, dialect=telling)
    for outcome, seen in zip(run.outcomes, server.seen, strict=True):
        # The run's clock began at or after `before`, so a written time on it is at most this one.
        assert outcome.sent <= seen.arrived - before
        assert all(later > earlier for earlier, later in pairwise(outcome.token_times))
        for got, written in zip(outcome.token_times, seen.token_times, strict=True):
            assert got - outcome.sent >= written - seen.arrived
    found = figures(run, requests)
    assert found.ttft.p50 >= 0.06
    assert found.gap.p50 >= 0.02 - 0.001
    assert found.latency.p50 >= 0.12
    assert run.wall_seconds >= 3 * 0.12


def test_a_user_sends_its_next_request_when_it_has_the_answer(scripted: StartScripted) -> None:
    server = scripted(lambda number, body: Script(gap_seconds=0.002))
    run = load(server, make_bench_requests(12), num_users=3)
    for user in range(3):
        own = [outcome for outcome in run.outcomes if outcome.user == user]
        assert [outcome.index for outcome in own] == [user, user + 3, user + 6, user + 9]
        assert own[0].scheduled == 0.0
        for before, after in pairwise(own):
            assert after.scheduled == before.ended
        for outcome in own:
            times = (outcome.scheduled, outcome.sent, *outcome.token_times, outcome.ended)
            assert list(times) == sorted(times)
    assert run.wall_seconds == max(outcome.ended for outcome in run.outcomes)
    lags = [outcome.sent - outcome.scheduled for outcome in run.outcomes]
    assert run.worst_lag_seconds >= max(lags)


def test_all_users_ask_at_the_same_time_and_never_more_than_they_are(scripted: StartScripted) -> None:
    together = threading.Event()

    def plan(number: int, body: object) -> Script:
        if number == 39:
            together.set()
        return Script(wait_for=together)  # nobody gets a token before the fortieth has asked

    server = scripted(plan)
    run = load(server, make_bench_requests(100, output_tokens=2), num_users=40)
    assert [outcome.error for outcome in run.outcomes] == [""] * 100
    assert server.max_in_flight == 40


@BOTH
def test_a_users_connection_is_kept(scripted: StartScripted, dialect: str) -> None:
    server = scripted()
    load(server, make_bench_requests(30), num_users=3, dialect=dialect)
    assert len({seen.connection for seen in server.seen}) == 3


def test_every_ended_request_is_told_in_the_callers_thread(scripted: StartScripted) -> None:
    threads = []
    server = scripted(lambda number, body: Script(status=500) if number % 2 else Script())
    run_load(
        server.url,
        DIALECTS["lmi"],
        Users(2).sessions(make_bench_requests(6), 0),
        200.0,
        lambda outcome: threads.append(threading.get_ident()),
    )
    assert threads == [threading.get_ident()] * 6


def test_requests_of_an_open_loop_are_sent_when_they_are_due_whatever_became_of_the_others(
    scripted: StartScripted,
) -> None:
    third = threading.Event()

    def plan(number: int, body: object) -> Script:
        if number == 2:
            third.set()
        return Script(wait_for=third)  # the first two are answered when the third has come

    server = scripted(plan)
    sessions = OpenLoop(rate=100.0, burstiness=math.inf).sessions(make_bench_requests(6), 0)
    run = run_load(server.url, DIALECTS["lmi"], sessions, 200.0, lambda outcome: None)
    assert [outcome.error for outcome in run.outcomes] == [""] * 6
    assert [outcome.scheduled for outcome in run.outcomes] == [session.start for session in sessions]
    assert all(outcome.sent >= outcome.scheduled for outcome in run.outcomes)
    # Counted from the time at which it was due, with what the client was late.
    assert all(one.latency == one.ended - one.scheduled >= one.ended - one.sent for one in run.outcomes)
    assert run.outcomes[0].ttft >= 0.02


def test_users_of_a_ramp_join_at_their_times_and_go_on(scripted: StartScripted) -> None:
    requests = make_bench_requests(6)
    sessions = Users(3, ramp=100.0).sessions(requests, 0)
    run = run_load(scripted().url, DIALECTS["lmi"], sessions, 200.0, lambda outcome: None)
    assert [run.outcomes[user].scheduled for user in range(3)] == [0.0, 0.01, 0.02]
    assert [one.scheduled for one in run.outcomes[3:]] == [one.ended for one in run.outcomes[:3]]


def test_a_burst_beyond_the_clients_threads_is_sent_late_and_says_so(
    scripted: StartScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "_MAX_THREADS", 2)
    server = scripted(lambda number, body: Script(first_seconds=0.02))
    requests = make_bench_requests(8)
    run = run_load(server.url, DIALECTS["lmi"], Burst().sessions(requests, 0), 200.0, lambda outcome: None)
    assert server.max_in_flight <= 2
    assert run.worst_lag_seconds >= 3 * 0.02
    assert "the load client sent requests up to" in figures(run, requests).client_limited


def test_a_fault_of_the_client_ends_the_run(scripted: StartScripted) -> None:
    class Faulty(Slow):
        def body(self, request: BenchRequest) -> bytes:
            raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="internal error in the load client") as caught:
        load(scripted(), make_bench_requests(3), dialect=Faulty(reading=0.0))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert not any(thread.name.startswith("user-") for thread in threading.enumerate())


BROKEN = {
    "error record": (Script(error_after=2), "planned trouble"),
    "cut": (Script(break_after=2), "the connection closed before the response was complete"),
    "ended early": (Script(end_after=2), "the stream ended before its final record"),
    "queue full": (
        Script(status=503, body=b'{"error":"queue full","code":503}'),
        "HTTP 503: queue full",
    ),
    "openai's error": (
        Script(status=429, body=b'{"error":{"message":"slow down"}}'),
        "HTTP 429: slow down",
    ),
    "page": (Script(status=502, body=b"<h1>bad gateway</h1>"), "HTTP 502: <h1>bad gateway</h1>"),
    "redirect": (Script(status=302), "HTTP 302: "),
    "nonsense": (Script(raw=b"data: nonsense\n\n"), "not a record of the "),
}


@BOTH
@pytest.mark.parametrize(("plan", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_failed_request_says_why_and_the_others_go_on(
    scripted: StartScripted, dialect: str, plan: Script, text: str
) -> None:
    server = scripted(lambda number, body: plan if number == 1 else Script())
    requests = make_bench_requests(4)
    run = load(server, requests, dialect=dialect)
    assert run.outcomes[1].error.startswith(text)
    assert [outcome.error for outcome in run.outcomes if outcome.index != 1] == ["", "", ""]
    assert len(run.outcomes[1].token_times) <= 2
    assert figures(run, requests).num_errors == 1


@BOTH
def test_wrong_counts_are_failures(scripted: StartScripted, dialect: str) -> None:
    plans = [
        Script(),
        Script(extra_tokens=1),
        Script(extra_tokens=-1),
        Script(prompt_tokens=9),
    ]
    requests = make_bench_requests(4)
    found = figures(load(scripted(lambda number, body: plans[number]), requests, dialect=dialect), requests)
    assert found.num_errors == 3
    texts = sorted(one.text for one in found.errors)
    assert texts[0] == "received 3 output tokens, requested 4"
    assert texts[1] == "received 5 output tokens, requested 4"
    assert texts[2].startswith("the server counts 9 prompt tokens, the client 3")


def test_an_openai_server_that_does_not_count_cannot_be_trusted(scripted: StartScripted) -> None:
    requests = make_bench_requests(1)
    run = load(scripted(lambda number, body: Script(usage=False)), requests, dialect="openai")
    assert "does not report how many tokens" in run.outcomes[0].error


@BOTH
def test_an_answer_that_ends_with_its_connection_is_read_as_it_comes(
    scripted: StartScripted, dialect: str
) -> None:
    telling = Telling(dialect)
    server = scripted(lambda number, body: Script(chunked=False, gap_seconds=0.02, read=telling.tokens_read))
    run = load(server, make_bench_requests(2), dialect=telling)
    assert [outcome.error for outcome in run.outcomes] == ["", ""]
    assert run.outcomes[0].token_times[-1] - run.outcomes[0].token_times[0] >= 0.05


@pytest.mark.parametrize(
    "plan",
    [
        Script(first_seconds=9.0),
        Script(first_seconds=0.2, gap_seconds=0.2),
        Script(first_seconds=0.9, gap_seconds=9.0),
    ],
    ids=["silent", "a little now and then", "silent after a while"],
)
def test_a_request_has_its_time_as_a_whole(scripted: StartScripted, plan: Script) -> None:
    run = load(scripted(lambda number, body: plan), make_bench_requests(1, output_tokens=50), timeout=1.0)
    (outcome,) = run.outcomes
    assert (outcome.error, outcome.timed_out) == ("no complete response within 1 s", True)
    assert outcome.ended - outcome.sent >= 1.0


class Slow:
    """LMI's dialect, but reading a record computes for so many seconds."""

    def __init__(self, reading: float) -> None:
        self._real = DIALECTS["lmi"]
        self._reading = reading
        self.name, self.path, self.pieces_are_tokens = "lmi", "/invocations", True

    def body(self, request: BenchRequest) -> bytes:
        return self._real.body(request)

    def read(self, line: bytes) -> Record | None:
        until = time.thread_time() + self._reading
        while time.thread_time() < until:
            pass
        return self._real.read(line)


def test_what_the_client_computes_is_measured(scripted: StartScripted) -> None:
    requests = make_bench_requests(4, output_tokens=16)
    run = load(scripted(), requests, num_users=4, dialect=Slow(reading=0.004))
    assert run.client_cpu_seconds >= 4 * 16 * 0.004
    # Had it had a processor for itself, that would have been all of the time.
    alone = figures(replace(run, wall_seconds=run.client_cpu_seconds), requests)
    assert "the load client was busy for 100 % of the time" in alone.client_limited


def test_a_client_that_waits_for_the_interpreter_is_seen_to_be_late(scripted: StartScripted) -> None:
    """From the sending of a request on, another thread keeps the interpreter's lock for 0.2 s at a time."""
    over = threading.Event()
    hog = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    interval = sys.getswitchinterval()

    def plan(number: int, body: object) -> Script:
        sys.setswitchinterval(0.2)
        hog.start()
        return Script(first_seconds=0.3)

    server = scripted(plan)
    try:
        run = load(server, make_bench_requests(1, output_tokens=1))
    finally:
        over.set()
        sys.setswitchinterval(interval)
        hog.join()
    assert run.worst_lag_seconds >= 0.1
    assert run.outcomes[0].ended - run.outcomes[0].sent >= 0.3
