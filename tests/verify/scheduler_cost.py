"""Scheduler: at most 500 us a step at 256 running and 1,000 waiting; linear in running, flat in waiting.

Runs `step_cost.py` on one core, without torch or a model: the scheduler's own work with real, growing block tables.
"""

from __future__ import annotations

from tests.verify.commands import run_python
from tests.verify.lab import Lab, Report, run_alone


def verify(lab: Lab, report: Report) -> None:
    done = run_python("-m", "tests.verify.step_cost")
    report.require(done.returncode == 0, "; ".join(done.stdout.splitlines()[-2:]))


if __name__ == "__main__":
    run_alone(verify)
