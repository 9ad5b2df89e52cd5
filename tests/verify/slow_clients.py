"""Slow and malicious clients: 100,000 names refused in 0.5 s; /ping stays fast beside 4,000 slow connections.

Bodies of 64 MiB that are costly to parse are refused or parsed while `/ping` is requested continuously
on new connections; no response may take longer than a second. The slow clients are a separate process
(`tests/support/slow_clients.py`): a quarter of the connections send nothing, a quarter stay open after one request,
a quarter send their headers byte by byte, a quarter their body. Closed connections are reopened at once. Meanwhile
one upload at 1.5 kB a second, which is slow but allowed, must succeed.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.lmi_server.malformed_bodies import body_with_duplicate_name
from tests.support.client import Client, Ending
from tests.support.server import Server
from tests.support.slow_clients import SlowClients
from tests.verify.lab import Lab, Report, require_idle, run_alone

NUM_NAMES = 100_000
MAX_REFUSAL_SECONDS = 0.5
NUM_CONNECTIONS = 4000
NUM_OPENED = 4400
"""More than `NUM_CONNECTIONS`, since some are closed at any moment and then reopened."""
NUM_PINGS = 100
PING_EVERY_SECONDS = 0.25
MAX_P95_SECONDS = 0.1
MAX_SILENCE_SECONDS = 1.0
"""Longest `/ping` while a body of 64 MiB is parsed."""
NUM_GOOD = 20
SLOW_BODY_SECONDS = 40
"""Longer than a client may stall, at slightly more than the minimum rate."""
_LARGEST = 64 * 1024 * 1024


class Pinger:
    """Request `/ping` repeatedly in a thread, each time on a new connection."""

    def __init__(self, client: Client, every: float) -> None:
        self._client = client
        self._every = every
        self._stop = threading.Event()
        self.seconds: list[float] = []
        self.failed = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            began = time.monotonic()
            self.failed += self._client.ping(timeout=30.0) != 200
            self.seconds.append(time.monotonic() - began)

    def during(self, work: Callable[[], None]) -> None:
        self._thread.start()
        try:
            work()
        finally:
            self._stop.set()
            self._thread.join()


def _list_of(unit: bytes) -> bytes:
    """Return a body of 64 MiB: a list of repeated units."""
    head, tail = b'{"inputs": [', b"0]}"
    return head + unit * ((_LARGEST - len(head) - len(tail)) // len(unit)) + tail


def costly_bodies() -> dict[str, bytes]:
    escapes = b"\\n" * (_LARGEST // 2 - 20)
    return {
        "empty lists": _list_of(b"[],"),
        "objects": _list_of(b'{"a":1},'),
        "strings of commas": _list_of(b'",",'),
        "one string of escapes": b'{"inputs": "' + escapes + b'"}',
        "one string of non-ASCII characters": ('{"inputs": "' + "é" * (_LARGEST // 2 - 20) + '"}').encode(),
    }


def judge_bodies(report: Report, client: Client) -> None:
    body = body_with_duplicate_name(NUM_NAMES)
    seconds, statuses = [], set()
    for _ in range(3):
        began = time.monotonic()
        statuses.add(client.post("/invocations", body).status)
        seconds.append(time.monotonic() - began)
    report.require(
        statuses == {424} and max(seconds) <= MAX_REFUSAL_SECONDS,
        f"{NUM_NAMES} names, the last one repeated: {statuses} after {max(seconds):.2f} s at most",
    )

    def send(costly: bytes) -> None:
        statuses.add(client.post("/invocations", costly).status)

    for name, costly in costly_bodies().items():
        pinger = Pinger(client, 0.02)
        began = time.monotonic()
        pinger.during(partial(send, costly))
        longest = max(pinger.seconds, default=0.0)
        report.require(
            pinger.failed == 0 and longest <= MAX_SILENCE_SECONDS,
            f"64 MiB of {name}: refused after {time.monotonic() - began:.1f} s; of {len(pinger.seconds)} pings "
            f"meanwhile the longest took {longest * 1000:.0f} ms",
        )
    report.require(statuses == {424}, f"statuses {statuses}")


def slow_upload(server: Server) -> bytes:
    """Upload a body at 1.5 kB a second. Returns the status line of the response."""
    body = json.dumps({"inputs": "Once", "parameters": {"max_new_tokens": 2}}).encode()
    body += b" " * (1500 * SLOW_BODY_SECONDS - len(body))
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        client.sendall(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 1500):
            client.sendall(body[start : start + 1500])
            time.sleep(1.0)
        return client.recv(4096).partition(b"\r\n")[0]


def judge_slow_clients(report: Report, server: Server) -> None:
    client = server.client
    expected = client.generate("Once upon a time,", max_new_tokens=16)
    with SlowClients("127.0.0.1", server.port, NUM_OPENED) as slow_clients, ThreadPoolExecutor(6) as pool:
        upload = pool.submit(slow_upload, server)
        calls = [
            pool.submit(client.generate, "Once upon a time,", max_new_tokens=16) for _ in range(NUM_GOOD)
        ]

        def watch() -> None:
            while len(pinger.seconds) < NUM_PINGS or not upload.done():
                slow_clients.watch()

        pinger = Pinger(client, PING_EVERY_SECONDS)
        pinger.during(watch)
        answers = [call.result() for call in calls]
        status_line = upload.result()
    p95 = statistics.quantiles(pinger.seconds, n=20)[-1]
    right = sum(
        answer.ending is Ending.COMPLETE and answer.token_ids == expected.token_ids for answer in answers
    )
    num_open = statistics.median(slow_clients.num_open)
    report.require(
        num_open >= NUM_CONNECTIONS,
        f"{num_open:.0f} idle and trickling connections, at least {min(slow_clients.num_open)}; "
        f"{slow_clients.num_closed} were closed because they were too slow, and replaced",
    )
    report.require(
        pinger.failed == 0 and p95 <= MAX_P95_SECONDS,
        f"{len(pinger.seconds)} pings: median {statistics.median(pinger.seconds) * 1000:.0f} ms, p95 "
        f"{p95 * 1000:.0f} ms, longest {max(pinger.seconds) * 1000:.0f} ms, {pinger.failed} failed",
    )
    report.require(right == NUM_GOOD, f"{right} of {NUM_GOOD} good requests got the right response")
    report.require(
        b" 200 " in status_line, f"a body that takes {SLOW_BODY_SECONDS} s: {status_line.decode()}"
    )


def verify(lab: Lab, report: Report) -> None:
    with lab.server("slow-clients") as server:
        judge_bodies(report, server.client)
        judge_slow_clients(report, server)
        require_idle(report, server.client)


if __name__ == "__main__":
    run_alone(verify)
