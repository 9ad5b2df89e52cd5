"""Reports of property tests, and the command that runs every combination of options."""

from __future__ import annotations

import argparse
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from tests.engines.mpi.scheduler.property_cache import Violation
from tests.engines.mpi.scheduler.property_combinations import Combination, combinations


@dataclass(slots=True)
class Report:
    """Result of one combination."""

    combination: Combination
    seed: int
    num_steps: int = 0
    num_requests: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_hit_tokens: int = 0
    num_refused: int = 0
    num_failed: int = 0
    num_left_out: int = 0
    """How often a step left out a sequence that was ready to decode."""
    violation: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.combination!s:45} {self.num_steps:>8} steps {self.num_requests:>7} requests "
            f"{self.num_failed:>6} failed {self.num_refused:>6} refused {self.num_preemptions:>6} preemptions "
            f"{self.num_recomputed_tokens:>7} recomputed {self.num_hit_tokens:>7} hit tokens "
        )
        return text + (
            f"VIOLATION (--seed {self.seed}): {self.violation}" if self.violation else "0 violations"
        )


class Episode(Protocol):
    """A scheduler or an engine, from the first request to the end of all requests."""

    def run(self, num_steps: int) -> None:
        """Accept requests for `num_steps` steps. Raises `Violation` when an invariant is broken."""


def run_episodes(
    start: Callable[[Combination, random.Random, Report], Episode],
    combination: Combination,
    num_steps: int,
    seed: int,
) -> Report:
    """Run episodes with at least `num_steps` steps. Stop at the first violation, which the report describes."""
    report = Report(combination, seed)
    rng = random.Random(f"{combination} {seed}")
    while report.num_steps < num_steps and not report.violation:
        try:
            start(combination, rng, report).run(rng.choice((50, 200, 600)))
        except Exception as error:  # any exception counts as a violation
            kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
            report.violation = f"step {report.num_steps}: {kind}{error}"
    return report


def run_command(
    description: str | None,
    run: Callable[[Combination, int, int], Report],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run all combinations and print their reports. Returns the exit code. run: a function of a module."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000, help="steps of each combination")
    parser.add_argument("--seed", type=int, default=None, help="defaults to a random seed, which is printed")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--only", default="", help="combinations whose names contain this")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    work = [one for one in combinations() if options.only in str(one)]
    print(f"{len(work)} combinations, {options.steps} steps each, seed {seed}", flush=True)
    started = time.perf_counter()
    reports = []
    with ProcessPoolExecutor(options.jobs) as pool:
        map_all = pool.map if options.jobs > 1 else map
        for report in map_all(run, work, repeat(options.steps), repeat(seed)):
            print(report, flush=True)
            reports.append(report)
    seconds = time.perf_counter() - started
    steps, violations = sum(r.num_steps for r in reports), sum(bool(r.violation) for r in reports)
    print(f"{steps} steps in {seconds:.0f} s, {steps / seconds:.0f} a second, {violations} violations")
    return 1 if violations else 0
