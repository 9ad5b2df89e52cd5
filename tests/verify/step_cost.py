"""`python -m tests.verify.step_cost`: microseconds per step that the scheduler takes outside of the model.

The engine's own scheduler runs on one core, with pages of 16 and prefix caching, and every running sequence decodes.
Other programs on the machine only increase the times, so each case shows the fastest of several rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass

from engines.config import SchedulerConfig
from engines.core import Request, SampledToken, SamplingParams, SchedulerSettings
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.scheduler.scheduler import Scheduler

RUNNING = (32, 64, 128, 256)
WAITING = (0, 1000, 4000)
TARGET = (256, 1000, 250.0, 500.0)
"""Running and waiting sequences; target and limit in microseconds per step, on a quiet machine."""

MAX_GROWTH = 1.2
"""Maximum ratios for linear growth and for no growth. They allow for the variation of timings."""

_BLOCK_SIZE = 16
_PROMPT_TOKENS = (192, 320)
"""Range of the running sequences' random prompt lengths. In every step, some sequences need a new page."""
_WARM_UP_STEPS = 40
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Micros:
    """Microseconds over all measured steps."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> Micros:
        cuts = statistics.quantiles((1e6 * value for value in seconds), n=10, method="inclusive")
        return cls(cuts[4], cuts[0], cuts[8])


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of steps in which every running sequence computes one token and no sequence arrives or finishes."""

    num_running: int
    num_waiting: int
    schedule: Micros
    """Cost of `expire` and `schedule`."""
    update: Micros
    total: Micros
    """Cost of schedule and update."""
    encode: Micros
    """Cost of encoding the plan for other ranks. The total excludes it, since a single rank does not need it."""


def measure(num_steps: int, num_running: int, num_waiting: int) -> StepCost:
    """Measure one case. Raises ValueError if the scheduler does not run the intended steps."""
    clock = time.perf_counter
    scheduler = _make_scheduler(num_steps, num_running, num_waiting)
    schedule, update, encode = [], [], []
    token = SampledToken(7)
    for number in range(_WARM_UP_STEPS + num_steps):
        started = clock()
        scheduler.expire(float(number))
        step = scheduler.schedule()
        scheduled = clock()
        if step is None or step.plan.num_tokens != num_running:
            raise ValueError(f"a step with {step and step.plan.num_tokens} tokens, not {num_running}")
        step.plan.encode()
        encoded = clock()
        tokens = [token] * num_running
        sampled = clock()
        scheduler.update(step, tokens, float(number))
        scheduler.pop_started()
        updated = clock()
        schedule.append(scheduled - started)
        encode.append(encoded - scheduled)
        update.append(updated - sampled)
    if (scheduler.num_running, scheduler.num_waiting) != (num_running, num_waiting):
        raise ValueError(f"{scheduler.num_running} run and {scheduler.num_waiting} wait at the end")
    kept = slice(_WARM_UP_STEPS, None)
    total = [one + other for one, other in zip(schedule, update, strict=True)]
    return StepCost(
        num_running, num_waiting, *(Micros.of(values[kept]) for values in (schedule, update, total, encode))
    )


def _make_scheduler(num_steps: int, num_running: int, num_waiting: int) -> Scheduler:
    """Return a scheduler whose running sequences have their first token, with `num_waiting` sequences behind them."""
    numbers = random.Random(1)
    length = _PROMPT_TOKENS[1] + _WARM_UP_STEPS + num_steps + 2
    num_blocks = num_running * -(-length // _BLOCK_SIZE)
    limits = SchedulerSettings(
        max_num_seqs=num_running,
        max_prefill_tokens=1 << 20,
        max_num_batched_tokens=1 << 20,
        max_waiting=num_waiting + 1,
    )
    scheduler = Scheduler(
        SchedulerConfig(limits, "max_utilization"),
        make_block_manager(num_blocks, _BLOCK_SIZE, paged=True, prefix_caching=True),
        max_model_len=1 << 20,
        vocab_size=1 << 30,
    )
    sampling = SamplingParams(max_new_tokens=_WARM_UP_STEPS + num_steps + 2)
    for number in range(num_running):
        scheduler.add(_request(f"running {number}", numbers, numbers.randint(*_PROMPT_TOKENS), sampling))
    step = scheduler.schedule()
    if step is None or len(step.sequences) != num_running:
        raise ValueError(f"not all {num_running} prompts are in the first step")
    scheduler.update(step, [SampledToken(7)] * num_running, 0.0)
    scheduler.pop_started()
    last = SamplingParams(max_new_tokens=1)
    for number in range(num_waiting):
        scheduler.add(_request(f"waiting {number}", numbers, _PROMPT_TOKENS[0], last))
    return scheduler


def _request(name: str, numbers: random.Random, length: int, sampling: SamplingParams) -> Request:
    token = numbers.randrange(30_000)
    tenant = f"tenant {numbers.randrange(8)}"
    return Request(name, tuple(range(token, token + length)), sampling, 0.0, tenant=tenant)


def growth_with_running(costs: list[StepCost]) -> float:
    """Return the largest growth of the cost from the fewest to the most running sequences. 1 is linear growth.

    Compares 10th percentiles, which other programs disturb the least.
    """
    by_case = {(cost.num_running, cost.num_waiting): cost.total.p10 for cost in costs}
    ratios = (by_case[RUNNING[-1], waiting] / by_case[RUNNING[0], waiting] for waiting in WAITING)
    return max(ratios) / (RUNNING[-1] / RUNNING[0])


def growth_with_waiting(costs: list[StepCost]) -> float:
    """Return the largest cost with the most waiting sequences relative to the fewest."""
    by_case = {(cost.num_running, cost.num_waiting): cost.total.p10 for cost in costs}
    return max(by_case[running, WAITING[-1]] / by_case[running, WAITING[0]] for running in RUNNING)


def main() -> int:
    """Print a line for each case. Returns 1 if 256 running and 1,000 waiting sequences cost more than the limit, or if
    the cost grows too fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="measured steps of each case")
    num_steps = parser.parse_args().steps
    rounds = [
        [measure(num_steps, running, waiting) for running in RUNNING for waiting in WAITING]
        for _ in range(_ROUNDS)
    ]
    costs = [min(case, key=lambda cost: cost.total.median) for case in zip(*rounds, strict=True)]
    print("running  waiting  schedule  update  both, median (p10 to p90)  encode    us per step")
    for cost in costs:
        print(
            f"{cost.num_running:7}  {cost.num_waiting:7}  {cost.schedule.median:8.0f}  {cost.update.median:6.0f}"
            f"  {cost.total.median:12.0f} ({cost.total.p10:.0f} to {cost.total.p90:.0f})  {cost.encode.median:12.0f}"
        )
    running, waiting, target, limit = TARGET
    reached = next(c.total.median for c in costs if (c.num_running, c.num_waiting) == (running, waiting))
    print(
        f"{running} running, {waiting} waiting: {reached:.0f} us per step; target {target:.0f}, limit {limit:.0f}"
    )
    with_running, with_waiting = growth_with_running(costs), growth_with_waiting(costs)
    print(
        f"cost grows {with_running:.2f} times as fast as the running sequences, and with the most waiting sequences is "
        f"{with_waiting:.2f} times that with none; limit {MAX_GROWTH}"
    )
    return 0 if reached <= limit and max(with_running, with_waiting) <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
