"""The load client against a scripted HTTP server."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from container.measure.bench import load as load_module
from container.measure.bench.arrivals import Arrivals, Burst, OpenLoop, Users
from container.measure.bench.dialects import DIALECTS, Dialect, Record
from container.measure.bench.figures import figures
from container.measure.bench.load import LoadRun, run_load
from container.measure.bench.workload import BenchRequest
from tests.container.measure.bench.scripted_server import FIRST_ID, Planner, Script, ScriptedServer
from tests.container.measure.conftest import StartScripted, make_bench_requests

BOTH = pytest.mark.parametrize("dialect", ["lmi", "openai"])
ONE_USER = Users(1)


def load(
    server: ScriptedServer,
    requests: list[BenchRequest],
    arrivals: Arrivals = ONE_USER,
    dialect: str | Dialect = "lmi",
    timeout: float = 200.0,
    on_done: Callable[[object], None] = lambda outcome: None,
) -> LoadRun:
    spoken = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    return run_load(server.url, spoken, arrivals.sessions(requests, 0), timeout, on_done)


def held_until(last: int) -> Planner:
    """Plan that no response starts before request number `last` has arrived."""
    arrived = threading.Event()

    def plan(number: int, body: object) -> Script:
        if number == last:
            arrived.set()
        return Script(wait_for=arrived)

    return plan


class Reporting:
    """A dialect that reports each token it reads, so that the server sends the next one only then."""

    def __init__(self, dialect: str, reading_seconds: float = 0.0) -> None:
        """reading_seconds: CPU time to read a record."""
        self._real = DIALECTS[dialect]
        self._reading_seconds = reading_seconds
        self.name, self.path = self._real.name, self._real.path
        self.pieces_are_tokens = self._real.pieces_are_tokens
        self.tokens_read = threading.Semaphore(0)

    def for_server(self, url: str) -> Dialect:
        return self

    def body(self, request: BenchRequest) -> bytes:
        return self._real.body(request)

    def read(self, line: bytes) -> Record | None:
        until = time.thread_time() + self._reading_seconds
        while time.thread_time() < until:
            pass
        record = self._real.read(line)
        if record is not None and record.num_pieces:
            self.tokens_read.release(record.num_pieces)
        return record


@BOTH
def test_every_request_gets_its_whole_response_on_its_users_connection(
    scripted: StartScripted, dialect: str
) -> None:
    server = scripted()
    requests = make_bench_requests(20, output_tokens=5)
    run = load(server, requests, Users(4), dialect)
    assert [outcome.index for outcome in run.outcomes] == list(range(20))
    assert [outcome.error for outcome in run.outcomes] == [""] * 20
    assert {outcome.output_tokens for outcome in run.outcomes} == {5}
    assert {len(outcome.token_times) for outcome in run.outcomes} == {5}
    ids = tuple(range(FIRST_ID, FIRST_ID + 5)) if dialect == "lmi" else ()
    assert {outcome.token_ids for outcome in run.outcomes} == {ids}
    assert {outcome.prompt_tokens for outcome in run.outcomes} == {None if dialect == "lmi" else 3}
    assert {seen.path for seen in server.seen} == {DIALECTS[dialect].path}
    assert len({seen.connection for seen in server.seen}) == 4
    assert figures(run, requests).num_errors == 0


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ((200, b'{"data": [{"id": "qwen"}, {"id": "phi"}]}'), "qwen"),
        ((200, b'{"data": [{"id": "qwen"}, {"id": "lmi"}]}'), "lmi"),
        ((200, b'{"data": []}'), "lmi"),
        ((200, b"<html>"), "lmi"),
        ((404, b""), "lmi"),
    ],
)
def test_requests_name_the_model_that_the_server_lists(
    scripted: StartScripted, models: tuple[int, bytes], name: str
) -> None:
    server = scripted(models=models)
    load(server, make_bench_requests(2), dialect="openai")
    assert [seen.body["model"] for seen in server.seen] == [name, name]


@pytest.mark.parametrize(("dialect", "chunked"), [("lmi", True), ("openai", True), ("lmi", False)])
def test_measured_times_match_the_times_of_the_server(
    scripted: StartScripted, dialect: str, chunked: bool
) -> None:
    """A response that is not chunked ends with its connection, as in HTTP/1.0."""
    reporting = Reporting(dialect)
    script = Script(first_seconds=0.06, gap_seconds=0.02, read=reporting.tokens_read, chunked=chunked)
    server = scripted(lambda number, body: script)
    requests = make_bench_requests(3)
    before = time.perf_counter()
    run = load(server, requests, dialect=reporting)
    for outcome, seen in zip(run.outcomes, server.seen, strict=True):
        # The run starts at or after `before`, so its clock is at most this time.
        assert outcome.sent <= seen.arrived - before
        assert all(later > earlier for earlier, later in pairwise(outcome.token_times))
        for got, written in zip(outcome.token_times, seen.token_times, strict=True):
            assert got - outcome.sent >= written - seen.arrived
    found = figures(run, requests)
    assert found.ttft.p50 >= 0.06
    assert found.gap.p50 >= 0.02 - 0.001
    assert found.latency.p50 >= 0.12
    assert run.wall_seconds >= 3 * 0.12


def test_a_user_sends_the_next_request_after_the_response(scripted: StartScripted) -> None:
    server = scripted(lambda number, body: Script(gap_seconds=0.002))
    run = load(server, make_bench_requests(12), Users(3))
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


def test_users_send_concurrently_with_one_request_each(scripted: StartScripted) -> None:
    server = scripted(held_until(39))
    run = load(server, make_bench_requests(100, output_tokens=2), Users(40))
    assert [outcome.error for outcome in run.outcomes] == [""] * 100
    assert server.max_in_flight == 40


def test_outcomes_are_reported_in_the_callers_thread(scripted: StartScripted) -> None:
    threads = []
    server = scripted(lambda number, body: Script(status=500) if number % 2 else Script())
    load(server, make_bench_requests(6), Users(2), on_done=lambda one: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()] * 6


def test_open_loop_requests_are_sent_when_due_without_waiting_for_responses(
    scripted: StartScripted,
) -> None:
    server = scripted(held_until(2))
    run = load(server, make_bench_requests(6), OpenLoop(rate=100.0, burstiness=math.inf))
    assert [outcome.error for outcome in run.outcomes] == [""] * 6
    assert [outcome.scheduled for outcome in run.outcomes] == [0.0, 0.01, 0.02, 0.03, 0.04, 0.05]
    assert all(outcome.sent >= outcome.scheduled for outcome in run.outcomes)
    # Latency counts from the scheduled time, so it includes late sends.
    assert all(one.latency == one.ended - one.scheduled >= one.ended - one.sent for one in run.outcomes)
    assert run.outcomes[0].ttft >= 0.02


def test_a_burst_beyond_the_clients_threads_is_reported_as_late(
    scripted: StartScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "_MAX_THREADS", 2)
    server = scripted(lambda number, body: Script(first_seconds=0.02))
    requests = make_bench_requests(8)
    run = load(server, requests, Burst())
    assert server.max_in_flight <= 2
    assert run.worst_lag_seconds >= 3 * 0.02
    assert "the load client sent requests up to" in figures(run, requests).client_limited


def test_an_internal_error_of_the_client_ends_the_run(scripted: StartScripted) -> None:
    class Faulty(Reporting):
        def body(self, request: BenchRequest) -> bytes:
            raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="internal error in the load client") as caught:
        load(scripted(), make_bench_requests(3), dialect=Faulty("lmi"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert not any(thread.name.startswith("user-") for thread in threading.enumerate())


def test_an_interrupt_ends_the_run_although_the_server_does_not_respond(scripted: StartScripted) -> None:
    second, answer = threading.Event(), threading.Event()

    def plan(number: int, body: object) -> Script:
        if number:
            second.set()
        return Script(wait_for=answer if number else second)

    def interrupt(outcome: object) -> None:
        raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        load(scripted(plan), make_bench_requests(2), Users(2), timeout=30.0, on_done=interrupt)
    stopped = time.monotonic()
    answer.set()
    for thread in threading.enumerate():
        if thread.name.startswith("user-"):
            thread.join(200.0)
    assert stopped - before < 10.0


BROKEN = {
    "error record": (Script(error_after=2), "planned trouble"),
    "connection reset": (Script(break_after=2), "the connection closed before the response was complete"),
    "ended early": (Script(end_after=2), "the stream ended before its final record"),
    "queue full": (Script(status=503, body=b'{"error":"queue full","code":503}'), "HTTP 503: queue full"),
    "openai's error": (Script(status=429, body=b'{"error":{"message":"slow down"}}'), "HTTP 429: slow down"),
    "HTML page": (Script(status=502, body=b"<h1>bad gateway</h1>"), "HTTP 502: <h1>bad gateway</h1>"),
    "redirect": (Script(status=302), "HTTP 302: "),
}


@BOTH
@pytest.mark.parametrize(("plan", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_a_failed_request_has_a_reason_and_the_others_continue(
    scripted: StartScripted, dialect: str, plan: Script, text: str
) -> None:
    server = scripted(lambda number, body: plan if number == 1 else Script())
    requests = make_bench_requests(4)
    run = load(server, requests, dialect=dialect)
    assert run.outcomes[1].error.startswith(text)
    assert [outcome.error for outcome in run.outcomes if outcome.index != 1] == ["", "", ""]
    assert len(run.outcomes[1].token_times) <= 2
    assert figures(run, requests).num_errors == 1


@pytest.mark.parametrize(
    "plan",
    [
        Script(first_seconds=9.0),
        Script(first_seconds=0.1, gap_seconds=0.1),
        Script(first_seconds=0.4, gap_seconds=9.0),
    ],
    ids=["silent", "slow tokens", "silent after the first token"],
)
def test_the_timeout_covers_the_whole_request(scripted: StartScripted, plan: Script) -> None:
    run = load(scripted(lambda number, body: plan), make_bench_requests(1, output_tokens=50), timeout=0.5)
    (outcome,) = run.outcomes
    assert (outcome.error, outcome.timed_out) == ("no complete response within 0.5 s", True)
    assert outcome.ended - outcome.sent >= 0.5


def test_the_clients_cpu_time_is_measured(scripted: StartScripted) -> None:
    requests = make_bench_requests(4, output_tokens=16)
    run = load(scripted(), requests, Users(4), Reporting("lmi", reading_seconds=0.004))
    assert run.client_cpu_seconds >= 4 * 16 * 0.004
    # With a CPU of its own, the client would have been busy all the time.
    alone = figures(replace(run, wall_seconds=run.client_cpu_seconds), requests)
    assert "the load client was busy for 100 % of the time" in alone.client_limited


def test_waiting_for_the_gil_is_measured_as_lag(scripted: StartScripted) -> None:
    """After the request is sent, another thread holds the GIL for 0.1 s at a time."""
    over = threading.Event()
    hog = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    interval = sys.getswitchinterval()

    def plan(number: int, body: object) -> Script:
        sys.setswitchinterval(0.1)
        hog.start()
        return Script(first_seconds=0.15)

    server = scripted(plan)
    try:
        run = load(server, make_bench_requests(1, output_tokens=1))
    finally:
        over.set()
        sys.setswitchinterval(interval)
        hog.join()
    assert run.worst_lag_seconds >= 0.05
    assert run.outcomes[0].ended - run.outcomes[0].sent >= 0.15
