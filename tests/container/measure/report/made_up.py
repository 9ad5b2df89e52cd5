"""Made-up results of `lmi compare`, in the form of its JSON, and step traces of a made-up engine."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCENARIO = "32 tokens in, 24 out on average"
MEASURES = (
    *("output_tokens_per_second", "ttft_p50", "ttft_p90", "gap_p50", "gap_p90"),
    *("latency_p50", "latency_p90"),
)
SPEEDS = {"static-4": 61.5, "rolling-8": 204.0, "rolling-paged-8": 211.25}
"""Output tokens/s by configuration."""
STEP_SECONDS = 0.02


def made_up_steps(
    outputs: Sequence[int], num_slots: int, *, static: bool, began: float = 100.0
) -> list[dict[str, Any]]:
    """The step trace of requests that all arrive at once: continuous batching, or batches that run to their end."""
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
        done = [request for request, (computed, tokens) in running.items() if computed >= 31 + tokens]
        for request in done:
            del running[request]
        steps.append(
            {
                "step": len(steps),
                "time": began + len(steps) * STEP_SECONDS,
                "arrivals": arrivals if not steps else [],
                "plan": plan,
                "ends": [{"id": request, "reason": "length"} for request in done],
                "seconds": {"model": STEP_SECONDS * 0.9, "host": STEP_SECONDS * 0.05},
                "running": len(running),
            }
        )
    return steps


def write_trace(path: Path, steps: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    return str(path)


def made_up_outputs(count: int = 48) -> list[int]:
    rng = random.Random("answers")
    return [max(2, min(96, round(rng.expovariate(1 / 24)))) for _ in range(count)]


def make_document(
    names: Sequence[str] = tuple(SPEEDS), scenarios: Sequence[str] = (SCENARIO,), num_rounds: int = 5
) -> dict[str, Any]:
    """Results with every key that a report reads, but without step traces."""
    rounds = [
        _round(name, _speed(name, place), scenario, number, place)
        for number in range(1, num_rounds + 1)
        for scenario in scenarios
        for place, name in enumerate(names)
    ]
    return {
        "setting": {
            "command": "lmi compare a b c --report out.html",
            "when": "2030-01-02 03:04 UTC",
            "machine": "2 cores (Abacus 9), 8.0 GiB free, no GPU",
            "versions": {"python": "3.11.2", "lmi-server": "0.1.0", "torch": "9.9.9"},
        },
        "plan": {
            "scenarios": [
                {"name": one, "workload": {"num_requests": 48, "name": one}, "arrivals": {"num_users": 8}}
                for one in scenarios
            ],
            "seed": 7,
        },
        "configurations": [
            {
                "name": name,
                "path": f"/configs/{name}",
                "engine": "MPI",
                "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "values": {"engine": "MPI", "option.max_rolling_batch_size": str(4 * (place + 1))},
            }
            for place, name in enumerate(names)
        ],
        "rounds": rounds,
        "stays": [
            {"configuration": name, "rounds": [1, 2], "start_up_seconds": 3.25, "peak_memory_bytes": 1 << 30}
            for name in names
        ],
        "stopped": "5 rounds were run",
        "summary": [
            _summary(name, _speed(name, place), _speed(names[0], 0), scenario)
            for scenario in scenarios
            for place, name in enumerate(names)
        ],
        "attribution": [
            {
                "scenario": scenarios[0],
                "measure": measure,
                "cause": cause,
                "is_sum": is_sum,
                "ratio": {"value": factor},
            }
            for measure in MEASURES
            for cause, factor, is_sum in (
                ("the whole gain", 3.4, True),
                ("paged instead of contiguous KV cache", 1.02, False),
                ("step-level scheduling instead of static batches", 1.9, False),
                ("a bigger batch", 1.45, False),
                ("kernels and engine instead of transformers", 1.21, False),
            )
        ],
        "sections": [],
        "caveats": ["The client ran on the same machine and shared its cores with the server."],
    }


def _speed(name: str, place: int) -> float:
    return SPEEDS.get(name, 80.0 + 50.0 * place)


def _round(name: str, speed: float, scenario: str, number: int, place: int) -> dict[str, Any]:
    rng = random.Random(f"{name}/{scenario}/{number}")
    requests = []
    busy = [0.0] * 8
    for tokens in made_up_outputs():
        user = busy.index(min(busy))
        due = busy[user]
        first = due + rng.uniform(0.2, 0.9) * 80 / speed
        ended = first + (tokens - 1) * rng.uniform(5, 9) / speed
        busy[user] = ended
        requests.append(
            {
                "due": due,
                "sent": due,
                "first_token": first,
                "ended": ended,
                "prompt_tokens": 32,
                "output_tokens": tokens,
                "error": "",
            }
        )
    return {
        "configuration": name,
        "scenario": scenario,
        "round": number,
        "figures": {
            "num_requests": len(requests),
            "num_errors": 0,
            "output_tokens_per_second": speed * rng.uniform(0.93, 1.07),
        },
        "batches": {"count": 400, "mean": 3.0 + place},
        "kv": {"mean_allocated": 500.0, "peak_allocated": 900.0, "waste": 0.13},
        "requests": requests,
    }


def _summary(name: str, speed: float, base: float, scenario: str) -> dict[str, Any]:
    ratio = speed / base
    latency = 400 / speed
    values = {key: latency if key.startswith("latency") else latency / 20 for key in MEASURES}
    values["output_tokens_per_second"] = speed
    ratios = {
        key: {"value": factor, "low": factor * 0.93, "high": factor * 1.07, "count": 5}
        for key in MEASURES
        for factor in (ratio if key == MEASURES[0] else 1 / ratio,)
    }
    verdict = f"{name} is faster than the first by {100 * (ratio - 1):.1f} % (95 % interval 3.1 % to 9.2 %)"
    return {
        "configuration": name,
        "scenario": scenario,
        "figures": {
            key: {"value": value, "low": value * 0.95, "high": value * 1.05, "count": 5}
            for key, value in values.items()
        },
        "ratios_to_first": ratios,
        "batch_occupancy": 0.75,
        "counters": {"preemptions": 12, "prefix_hit_tokens": 0, "padding_tokens": None},
        "tokens_of_first": {"num_requests": 240, "num_identical": 238},
        "verdicts": {} if math.isclose(speed, base) else dict.fromkeys(MEASURES, verdict),
    }


def make_search(url: str = "http://127.0.0.1:8080") -> dict[str, Any]:
    """Results of `lmi bench --find-rate`."""
    trials = [
        {
            "rate": rate,
            "too_high": "" if rate and rate < 7 else "requests pile up: 61.0 % are answered",
            "figures": {
                "output_tokens_per_second": min(24 * rate, 170.0),
                "latency": {"p50": 1 + rate / 8, "p90": 1.5 + (rate / 4) ** 2},
                "ttft": {"p50": 0.1, "p90": 0.2},
                "gap": {"p50": 0.02, "p90": 0.03},
                "num_errors": 0,
                "num_requests": 48,
            },
        }
        for rate in (8.0, 2.0, 4.0, 6.0)
    ]
    return {
        "url": url,
        "dialect": "lmi",
        "load": "48 requests at a rate",
        "scenario": {"workload": {"num_requests": 48}},
        "seed": 0,
        "versions": {"python": "3.11.2"},
        "best_rate": 6.0,
        "trials": trials,
    }
