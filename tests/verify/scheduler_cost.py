"""Time per step that the scheduler takes outside of the model."""

from __future__ import annotations

import json

from tests.verify.commands import run_python
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 19
TITLE = (
    "Scheduler: at most 500 us a step at 256 running and 1,000 waiting; linear in running, flat in waiting"
)

_MAX_LINEAR, _MAX_FLAT = 1.2, 1.2
"""Maximum ratios for linear growth and for no growth. They allow for the variation of timings."""


def verify(lab: Lab, report: Report) -> None:
    path = lab.folder / "scheduler-cost.json"
    done = run_python("-m", "tests.verify.step_cost", "--json", str(path))
    for line in done.stdout.splitlines():
        report.figure(line)
    values = json.loads(path.read_text(encoding="utf-8"))
    report.require(
        done.returncode == 0 and values["within_limit"], f"within {values['limit_us']:.0f} us per step"
    )
    running = max(values["growth_with_running"].values())
    report.require(running <= _MAX_LINEAR, f"cost grows {running:.2f} times as fast as the running sequences")
    waiting = max(values["growth_with_waiting"].values())
    report.require(
        waiting <= _MAX_FLAT, f"cost with the most waiting sequences is {waiting:.2f} times that with none"
    )


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
