"""`lmi scheduler-cost`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from container.measure.scheduler.cost import (
    AIM,
    RUNNING,
    WAITING,
    Bench,
    Micros,
    StepCost,
    growth_with_running,
    growth_with_waiting,
    measure,
)
from container.measure.scheduler.output import json_option, show, write_json
from engines.mpi.scheduler.policies import POLICIES

_MAX_STEPS = 100_000
_ROUNDS = 5


@click.command(
    "scheduler-cost",
    epilog="Exit code 1 when 256 running and 1,000 waiting requests cost more than the limit. Other programs on the "
    "machine make the figures larger, never smaller, so each case is the quietest of several rounds.",
)
@click.option(
    "--steps",
    type=click.IntRange(10, _MAX_STEPS),
    default=400,
    show_default=True,
    help="Measured, of each case.",
)
@click.option(
    "--scheduling-policy",
    type=click.Choice(list(POLICIES)),
    default="fcfs",
    show_default=True,
    help="Who is next.",
)
@click.option(
    "--blocked-by",
    type=click.Choice(["places", "blocks"]),
    default="places",
    show_default=True,
    help="Why those that wait cannot run: the batch is full, or their prompts do not fit.",
)
@json_option
def scheduler_cost(steps: int, scheduling_policy: str, blocked_by: str, json_path: Path | None) -> None:
    """Measure what a step of the rolling batch costs outside of the model.

    The engine's own scheduler on one core, pages of 16 with the prefix cache on, every running request generating.
    No model, no server.
    """
    bench = Bench(steps, scheduling_policy, blocked_by)
    rounds = [
        [measure(bench, running, waiting) for running in RUNNING for waiting in WAITING]
        for _ in range(_ROUNDS)
    ]
    # Of each case the quietest round: what else runs on the machine can only add.
    costs = [min(case, key=lambda cost: cost.total.median) for case in zip(*rounds, strict=True)]
    at_aim = next(c for c in costs if (c.num_running, c.num_waiting) == AIM[:2])
    running, waiting, aim, limit = AIM
    kept = at_aim.total.median <= limit
    with_running, with_waiting = growth_with_running(costs), growth_with_waiting(costs)
    verdict = "within the aim" if at_aim.total.median <= aim else "beyond the aim, within the limit"
    show(
        f"microseconds a step, {scheduling_policy}, {steps} steps each, the quietest of {_ROUNDS} rounds: "
        "median (10th to 90th percentile)",
        ("running", "waiting", "schedule", "update", "schedule + update", "a sequence", "encode the plan"),
        [_row(cost) for cost in costs],
        [
            f"{running} running, {waiting} waiting: {at_aim.total.median:.0f} us, aim {aim:.0f}, limit {limit:.0f}: "
            + (verdict if kept else "BEYOND THE LIMIT"),
            f"{RUNNING[-1] // RUNNING[0]} times as many running cost "
            + _ratios(with_running, "waiting")
            + " times as much, divided by that (1: linear)",
            f"{WAITING[-1]} waiting cost "
            + _ratios(with_waiting, "running")
            + " times as much as none (1: no growth)",
            "Schedule: deadlines and the next plan; update: taking in one token a sequence. A plan is encoded where "
            "there are further ranks. Growth is that of the 10th percentiles.",
        ],
        json_path,
    )
    values = {
        "costs_us": [asdict(cost) for cost in costs],
        "growth_with_running": with_running,
        "growth_with_waiting": with_waiting,
        "aim_us": aim,
        "limit_us": limit,
        "within_limit": kept,
        **asdict(bench),
    }
    write_json(values, json_path)
    sys.exit(0 if kept else 1)


def _row(cost: StepCost) -> tuple[str, ...]:
    return (
        str(cost.num_running),
        str(cost.num_waiting),
        f"{cost.schedule.median:.0f}",
        f"{cost.update.median:.0f}",
        _spread(cost.total),
        f"{cost.total.median / cost.num_running:.2f}",
        _spread(cost.encode),
    )


def _spread(micros: Micros) -> str:
    return f"{micros.median:.0f} ({micros.p10:.0f} to {micros.p90:.0f})"


def _ratios(ratios: dict[int, float], of: str) -> str:
    return ", ".join(f"{ratio:.2f} ({count} {of})" for count, ratio in ratios.items())
