"""SIGTERM, a stopped rank, a killed rank: every client gets an answer or an error, no process is left.

Each client's request ends in one of four ways: complete; error (an error status with a body, or an error record as
the last of a stream); closed (the connection closed without either); hung (nothing for 90 s). Only the first two are
accepted. "No process left" looks for the server's mark in the environment of every process, so a process is found
even when its parent is gone.

- SIGTERM to every process at tensor-parallel degree 1 and 2, with requests that can finish in time, requests that
  cannot, and requests that still wait: exit code 0 within 30 s; at least the 12 short running requests complete.
- SIGSTOP of each rank in turn at degree 2: within 10 s `/ping` is no longer 200 and gives the reason. After SIGCONT
  it is 200 again and a request is answered.
- SIGKILL of rank 0 and of rank 1 at degree 2, and of the only rank at degree 1: the server exits within 10 s with an
  exit code other than 0, and its log names the rank and the signal.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

from tests.support.client import Client, ClientRequest, Ending, Outcome
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.server import Server
from tests.verify.lab import Lab, Report, run_alone

TERM_SECONDS = 30.0
DRAIN_SECONDS = 24.0
"""Least time that running requests get to finish, as documented, less a second."""
STALL_SECONDS = 10.0
RESUME_SECONDS = 15.0
DEATH_SECONDS = 10.0
CLIENT_SECONDS = 90.0
"""A client that receives nothing for this long counts as hung."""


class Load:
    """Requests in flight, half of them streamed."""

    def __init__(self, client: Client, lengths: list[int]) -> None:
        """Start a request for each number of tokens in `lengths`, with EOS ignored."""
        self._pool = ThreadPoolExecutor(len(lengths))
        patient = Client(client.base_url, CLIENT_SECONDS)
        self._calls: list[Future[Outcome]] = []
        for number, length in enumerate(lengths):
            parameters = {"max_new_tokens": length, "ignore_eos_token": True}
            ask = ClientRequest(f"Number {number} is", parameters, stream=number % 2 == 0)
            self._calls.append(self._pool.submit(patient.outcome, ask))
        self.num_accepted = 0
        """Running and waiting requests, as the server reports them."""
        expected = len(lengths)
        seen = wait_metrics(client, lambda now: now[RUNNING] + now[WAITING] == expected, 60.0)
        self.num_accepted = int(seen[RUNNING] + seen[WAITING])
        self.num_waiting = int(seen[WAITING])

    def outcomes(self) -> list[Outcome]:
        """Wait for every client and return the outcomes."""
        self._pool.shutdown()
        return [call.result() for call in self._calls]


def judge_clients(report: Report, outcomes: list[Outcome], *, what: str) -> None:
    """Require that every client gets a complete response or an error."""
    seen = Counter(str(outcome.ending) for outcome in outcomes)
    good = all(outcome.ending in {Ending.COMPLETE, Ending.ERROR} for outcome in outcomes)
    report.require(good, f"{what}: {len(outcomes)} clients: {dict(seen)}")
    for outcome in outcomes:
        if outcome.ending in {Ending.CLOSED, Ending.HUNG}:
            report.figure(outcome.describe())
    error = next((outcome.error for outcome in outcomes if outcome.ending is Ending.ERROR), None)
    if error is not None:
        report.figure(f"error of one client: {error[:200]}")


def judge_nothing_left(report: Report, server: Server, *, what: str) -> None:
    leftover_processes = server.leftover_processes()
    report.require(not leftover_processes, f"{what}: processes left: {leftover_processes or 'none'}")


def verify_term(lab: Lab, report: Report, degree: int) -> None:
    """Send SIGTERM to every process, as systemd does.

    Some requests can finish in time, some cannot, and some are waiting.
    """
    what = f"SIGTERM, degree {degree}"
    name = f"term-{degree}"
    options = {"tensor_parallel_degree": degree, "max_rolling_batch_size": 16}
    with lab.server(name, **options) as server:
        load = Load(server.client, [40] * 12 + [6000] * 4 + [20] * 8)
        report.require(
            load.num_accepted == 24, f"{what}: {load.num_accepted} accepted, {load.num_waiting} waiting"
        )
        started = time.monotonic()
        for process in server.processes():
            process.terminate()
        code = server.wait_exit(TERM_SECONDS)
        seconds = time.monotonic() - started
        report.require(code == 0, f"{what}: exit code {code} after {seconds:.1f} s, limit {TERM_SECONDS:g} s")
        report.require(
            code is None or seconds >= DRAIN_SECONDS,
            f"{what}: running requests had {seconds:.1f} s, at least {DRAIN_SECONDS:g} s",
        )
        if code is None:
            server.destroy()
        outcomes = load.outcomes()
        judge_clients(report, outcomes, what=what)
        complete = sum(outcome.ending is Ending.COMPLETE for outcome in outcomes)
        report.require(
            complete >= 12, f"{what}: {complete} responses complete, at least the 12 short running ones"
        )
        judge_nothing_left(report, server, what=what)


def seconds_until_ping(client: Client, ready: bool, timeout: float) -> float | None:
    """Return the seconds until `/ping` is 200 (`ready`) or is not, or None after `timeout`."""
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < timeout:
        if (client.ping(timeout=1.0) == 200) is ready:
            return elapsed
        time.sleep(0.1)
    return None


def verify_stop(lab: Lab, report: Report) -> None:
    """Send SIGSTOP, then SIGCONT to each rank in turn. The server must recover."""
    with lab.server("stop", tensor_parallel_degree=2) as server:
        for number, rank in sorted(server.ranks().items()):
            what = f"SIGSTOP of rank {number}"
            load = Load(server.client, [200] * 8)
            rank.send_signal(signal.SIGSTOP)
            try:
                stalled = seconds_until_ping(server.client, ready=False, timeout=STALL_SECONDS)
                body = server.client.get("/ping").body.strip()[:200] if stalled is not None else ""
            finally:
                rank.send_signal(signal.SIGCONT)
            state = "still 200" if stalled is None else f"not 200 after {stalled:.1f} s"
            report.require(stalled is not None, f"{what}: /ping {state}, limit {STALL_SECONDS:g} s")
            report.require("no progress" in body, f"{what}: /ping gives the reason: {body}")
            resumed = seconds_until_ping(server.client, ready=True, timeout=RESUME_SECONDS)
            state = "not 200" if resumed is None else f"200 after {resumed:.1f} s"
            report.require(resumed is not None, f"{what}, then SIGCONT: /ping {state}")
            judge_clients(report, load.outcomes(), what=f"{what}, then SIGCONT")
            outcome = server.client.generate("Hello", max_new_tokens=4)
            report.require(
                outcome.ending is Ending.COMPLETE, f"{what}, then SIGCONT: a request: {outcome.describe()}"
            )


def verify_kill(lab: Lab, report: Report, degree: int, number: int) -> None:
    """Kill one rank under load with SIGKILL."""
    what = f"kill -9 of rank {number} of {degree}"
    with lab.server(f"kill-{degree}-{number}", tensor_parallel_degree=degree) as server:
        load = Load(server.client, [3000] * 8)
        report.require(load.num_accepted == 8, f"{what}: {load.num_accepted} requests accepted")
        log_before = len(server.log())
        started = time.monotonic()
        server.ranks()[number].kill()
        code = server.wait_exit(DEATH_SECONDS)
        seconds = time.monotonic() - started
        ended = code is not None and code != 0
        report.require(ended, f"{what}: exit code {code} after {seconds:.1f} s, limit {DEATH_SECONDS:g} s")
        if code is None:
            server.destroy()
        wanted = f"rank {number} was killed by SIGKILL"
        cause = [line for line in server.log()[log_before:].splitlines() if wanted in line]
        report.require(bool(cause), f"{what}: the log names the cause: {cause[-1][:200] if cause else 'no'}")
        judge_clients(report, load.outcomes(), what=what)
        judge_nothing_left(report, server, what=what)


def verify(lab: Lab, report: Report) -> None:
    verify_term(lab, report, degree=1)
    verify_term(lab, report, degree=2)
    verify_stop(lab, report)
    for number in (0, 1):
        verify_kill(lab, report, degree=2, number=number)
    verify_kill(lab, report, degree=1, number=0)


if __name__ == "__main__":
    run_alone(verify)
