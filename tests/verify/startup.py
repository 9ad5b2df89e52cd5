"""With the model prepared, /ping answers 200 within 30 s of lmi serve.

The server is started three times. The time is from the start of the process to the first 200 of `/ping`, which is
polled every 50 ms. Below each time, the server's own breakdown is printed. The first start may also read the weights
from disk; the others find them in the page cache.
"""

from __future__ import annotations

import re
import time

from tests.support.server import Server
from tests.verify.lab import Lab, Report, run_alone

LIMIT_SECONDS = 30.0
NUM_RUNS = 3
_LOG_SECONDS = 10.0
_BREAKDOWN = re.compile(r"^.*start-up took .*$", re.MULTILINE)
_READY = re.compile(r"^ready: .*$", re.MULTILINE)


def wait_line(server: Server, pattern: re.Pattern[str]) -> str | None:
    """Wait for the first matching log line. It may come a moment after `/ping` returns 200."""
    deadline = time.monotonic() + _LOG_SECONDS
    while (found := pattern.search(server.log())) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found.group() if found else None


def verify(lab: Lab, report: Report) -> None:
    for run in range(1, NUM_RUNS + 1):
        with lab.server(f"startup-{run}", paged_attention=True) as server:
            seconds = server.wait_ready()
            report.require(seconds <= LIMIT_SECONDS, f"run {run}: {seconds:.1f} s, limit {LIMIT_SECONDS:g} s")
            for pattern, what in ((_BREAKDOWN, "where the time goes"), (_READY, "what is served")):
                line = wait_line(server, pattern)
                report.require(line is not None, f"run {run}: the log says {what}: {line}")


if __name__ == "__main__":
    run_alone(verify)
