"""Steps planned before the last one's tokens are known: every request gets what it gets alone."""

from __future__ import annotations

import random

from tests.engines.mpi.scheduler.late_steps import MODES, run_episodes
from tests.verify.lab import Lab, Report, run_alone

_EPISODES = 300


def verify(lab: Lab, report: Report) -> None:
    seed = random.randrange(2**31)
    report.figure(f"seed {seed}")
    for mode in MODES:
        outcome = run_episodes(mode, _EPISODES, random.Random(f"{seed} {mode}"))
        report.require(
            outcome.num_wrong == 0,
            f"{mode}: {outcome.num_requests} requests, {outcome.num_wrong} wrong,"
            f" {outcome.num_preemptions} preemptions",
        )


if __name__ == "__main__":
    run_alone(verify)
