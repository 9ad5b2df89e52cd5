"""How long a prepared model takes until `/ping` answers 200, and where the time goes."""

from __future__ import annotations

import re

from tests.verify.lab import Lab, Report, run_alone

NUMBER = 6
TITLE = "With the model prepared, /ping answers 200 within 30 s of lmi serve"

LIMIT_SECONDS = 30.0
NUM_RUNS = 3
_WHERE = re.compile(r"start-?up|ready", re.IGNORECASE)


def verify(lab: Lab, report: Report) -> None:
    for run in range(1, NUM_RUNS + 1):
        with lab.server(f"startup-{run}", paged_attention=True) as server:
            seconds = server.wait_ready()
            report.require(seconds <= LIMIT_SECONDS, f"run {run}: {seconds:.1f} s, limit {LIMIT_SECONDS:g} s")
            told = [
                line
                for line in server.log().splitlines()
                if _WHERE.search(line) and re.search(r"\d s\b", line)
            ]
            report.require(
                bool(told), f"run {run}: the log says where the time goes: {'yes' if told else 'no'}"
            )
            for line in told:
                report.figure(line[:240])


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
