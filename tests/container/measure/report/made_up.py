"""Made-up results of `lmi compare` and `lmi bench`, and made-up step traces."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from container.measure.bench.arrivals import Users
from container.measure.bench.lengths import Exponential, Fixed
from container.measure.bench.report import BenchOrigin, BenchReport, SearchReport
from container.measure.bench.scenario import Scenario
from container.measure.bench.search import RateTrial
from container.measure.bench.workload import Workload
from container.measure.compare import attribution, report
from container.measure.compare.plan import Part, Plan
from container.measure.compare.results import Comparison, RequestTiming, RoundResult
from container.measure.output import plain_json
from tests.container.measure.compare.made_up import (
    PROVENANCE,
    make_comparison,
    make_configuration,
    make_figures,
    make_round,
)

SCENARIO = "32 tokens in, 24 out on average"
SPEEDS = {"static-4": 61.5, "rolling-8": 204.0, "rolling-paged-8": 211.25}
"""Output tokens/s by configuration."""
PARTS = (
    Part(attribution.PAGING, "rolling-paged-8", "rolling-8"),
    Part(attribution.SCHEDULING, "rolling-8", "static-4"),
)
STEP_SECONDS = 0.02
_NUM_ROUNDS = 5
_NOISE = (1.0, 0.96, 1.04, 0.98, 1.02)
"""Factors by round. Their order depends on the configuration, so ratios vary around the ratio of the speeds."""
_LOAD = Workload(Fixed(32), Exponential(24, 96), 48)


def made_up_steps(
    outputs: Sequence[int], num_slots: int, *, static: bool, began: float = 100.0
) -> list[dict[str, Any]]:
    """The step trace of requests that all arrive at once, with continuous or static batching."""
    waiting = [(f"r{number}", tokens) for number, tokens in enumerate(outputs)]
    arrivals = [
        {"id": request, "time": began, "prompt_tokens": 32, "max_new_tokens": tokens}
        for request, tokens in waiting
    ]
    running: dict[str, list[int]] = {}
    steps: list[dict[str, Any]] = []
    while waiting or running:
        while waiting and len(running) < num_slots and not (static and steps and steps[-1]["running"]):
            request, tokens = waiting.pop(0)
            running[request] = [0, tokens]
        plan = []
        for request, state in running.items():
            count = 32 if state[0] == 0 else 1
            plan.append([request, state[0], count])
            state[0] += count
        finished = [request for request, (computed, tokens) in running.items() if computed >= 31 + tokens]
        for request in finished:
            del running[request]
        steps.append(
            {
                "step": len(steps),
                "time": began + len(steps) * STEP_SECONDS,
                "arrivals": arrivals if not steps else [],
                "plan": plan,
                "ends": [{"id": request, "reason": "length"} for request in finished],
                "seconds": {"model": STEP_SECONDS * 0.9, "host": STEP_SECONDS * 0.05},
                "running": len(running),
            }
        )
    return steps


def write_trace(path: Path, steps: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    return str(path)


def made_up_outputs() -> list[int]:
    rng = random.Random("answers")
    return [max(2, min(96, round(rng.expovariate(1 / 24)))) for _ in range(_LOAD.num_requests)]


def make_document(
    names: Sequence[str] = tuple(SPEEDS), scenarios: Sequence[str] = (SCENARIO,)
) -> dict[str, Any]:
    """The output of `lmi compare --json`, without step traces. Names that are not in `SPEEDS` get rising speeds."""
    configs = [
        make_configuration(name, max_rolling_batch_size=str(4 * (position + 1)))
        for position, name in enumerate(names)
    ]
    rounds = [
        _round(name, position, scenario, number)
        for number in range(1, _NUM_ROUNDS + 1)
        for scenario in scenarios
        for position, name in enumerate(names)
    ]
    parts = PARTS if set(SPEEDS) <= set(names) else ()
    loads = tuple(Scenario(name, _LOAD, Users(8)) for name in scenarios)
    plan = Plan(loads, _NUM_ROUNDS, seed=7, parts=parts)
    return document_of(make_comparison(configs, rounds, plan=plan))


def document_of(comparison: Comparison) -> dict[str, Any]:
    document: dict[str, Any] = plain_json(report.json_values(comparison, PROVENANCE))
    return document


def _round(name: str, position: int, scenario: str, number: int) -> RoundResult:
    speed = SPEEDS.get(name, 80.0 + 50.0 * position) * _NOISE[(number + position) % len(_NOISE)]
    requests = _requests(speed, f"{name}/{scenario}/{number}")
    figures = replace(make_figures(speed, 400 / speed), num_requests=len(requests))
    return replace(make_round(name, number, figures, scenario=scenario), requests=requests)


def _requests(speed: float, seed: str) -> tuple[RequestTiming, ...]:
    """Requests of eight users."""
    rng = random.Random(seed)
    free_at = [0.0] * 8
    requests = []
    for tokens in made_up_outputs():
        due = min(free_at)
        first = due + rng.uniform(0.2, 0.9) * 80 / speed
        ended = first + (tokens - 1) * rng.uniform(5, 9) / speed
        free_at[free_at.index(due)] = ended
        requests.append(RequestTiming(due, due, first, ended, ended, 32, tokens, ""))
    return tuple(requests)


def _origin() -> BenchOrigin:
    scenario = Scenario("", _LOAD, Users(8))
    return BenchOrigin("http://127.0.0.1:8080", "lmi", scenario, 0, None, "/models/tiny", 2)


def make_benchmark(num_failed: int = 0) -> dict[str, Any]:
    """The output of `lmi bench --json`."""
    figures = make_figures(123.4, 1.5, errors=["gone away"] * num_failed)
    document: dict[str, Any] = plain_json(BenchReport(_origin(), figures).json_values())
    return document


def make_search(*rates: float) -> dict[str, Any]:
    """The output of `lmi bench --find-rate --json`. Rates below 7 requests/s are sustained."""
    trials = tuple(
        RateTrial(
            rate,
            make_figures(min(24 * rate, 170.0), 1.5 + (min(rate, 10.0) / 4) ** 2),
            "" if rate < 7 else "requests queue up: only 61.0 % completed in time",
        )
        for rate in rates
    )
    document: dict[str, Any] = plain_json(SearchReport(_origin(), trials).json_values())
    return document
