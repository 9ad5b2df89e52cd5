"""lmi simulate, calibrated with one trace: ten other configurations within 15 % of real runs.

    python -m tests.verify.simulation [--rounds N]

A server with a batch of 32 and default settings writes a step trace under a load that grows to 32 users. Ten
configurations differ from it in the batch's size, the size or absence of chunks, paging, static batching, or a KV
cache so small that sequences are preempted. Each runs five rounds of another load, with spread lengths, and is
simulated with the seeds of these rounds. The error is the median over the rounds, since a busy machine may have
slowed one of them.

The speed of a shared machine changes by tens of percent within minutes. Therefore every round records its own trace,
of a configuration that runs between the others, and the others are predicted from it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.server import properties_text
from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

OPTIONS: dict[str, object] = {"max_rolling_batch_size": 32, "kv_cache_gb": 0.5}
TRACED: dict[str, object] = {"kv_cache_gb": 0.4}
"""Configurations that differ only in live settings share a server and its trace. This one gets its own server."""
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "batch-4": {"max_rolling_batch_size": 4},
    "batch-8": {"max_rolling_batch_size": 8},
    "batch-12": {"max_rolling_batch_size": 12},
    "batch-20": {"max_rolling_batch_size": 20},
    "chunks-32": {"max_rolling_batch_prefill_tokens": 32},
    "chunks-128": {"max_rolling_batch_prefill_tokens": 128},
    "whole-prompts": {"enable_chunked_prefill": False, "max_rolling_batch_size": 16},
    "contiguous": {"paged_attention": False, "max_rolling_batch_size": 16},
    "static-16": {"batch_scheduler_policy": "static_batch", "max_rolling_batch_size": 16},
    "small-cache": {"kv_cache_gb": 0.06},
}
_NAMES = list(CONFIGURATIONS)
IN_TURN = (*_NAMES[: len(_NAMES) // 2], "traced", *_NAMES[len(_NAMES) // 2 :])
LOAD = (
    *("--users", "24", "--requests", "72", "--input-tokens", "96", "--output-tokens", "40"),
    *("--lengths", "spread"),
)
FIGURES: Mapping[str, tuple[str, ...]] = {
    "tokens/s": ("output_tokens_per_second",),
    "median TTFT": ("ttft", "p50"),
    "median TPOT": ("tpot", "p50"),
}
MAX_ERROR = 0.15


def verify(lab: Lab, report: Report, *, rounds: int = 5) -> None:
    """rounds: the number of real runs of each configuration."""
    folder = lab.folder / "simulation"
    for name in IN_TURN:
        (folder / name).mkdir(parents=True)
        text = properties_text(lab.model, **{**OPTIONS, **CONFIGURATIONS.get(name, TRACED)})
        (folder / name / "serving.properties").write_text(text)
    arguments = (*IN_TURN, "--rounds", str(rounds), "--step-traces", "traces", *LOAD)
    measured = run_lmi(folder, "compare", *arguments)
    by_name = {name: [one for one in measured["rounds"] if one["configuration"] == name] for name in IN_TURN}
    traces = {one["round"]: one["step_trace"] for one in by_name["traced"]}
    for name in CONFIGURATIONS:
        runs = by_name[name]
        simulated = [
            _simulate(folder, name, traces[one["round"]], measured["plan"]["seed"] + one["round"])
            for one in runs
        ]
        for measure, keys in FIGURES.items():
            real = [_value(one["metrics"], keys) for one in runs]
            predicted = [_value(one["metrics"], keys) for one in simulated]
            # In each round, the simulated and the real run had the same requests.
            ratios = [one / other for one, other in zip(predicted, real, strict=True)]
            error = statistics.median(ratios) - 1
            report.require(
                abs(error) <= MAX_ERROR,
                f"{name}: {measure}: simulated {statistics.median(predicted):.3g}, measured"
                f" {statistics.median(real):.3g} ({min(real):.3g} to {max(real):.3g}): {error:+.1%}",
            )


def _simulate(folder: Path, name: str, trace: str, seed: int) -> dict[str, Any]:
    arguments = ("simulate", str(folder / name), "--calibrate", trace, "--seed", str(seed), *LOAD)
    return run_lmi(folder / "simulated", *arguments)


def _value(figures: Mapping[str, Any], keys: tuple[str, ...]) -> float:
    value: Any = figures
    for key in keys:
        value = value[key]
    return float(value)


if __name__ == "__main__":
    run_alone(verify)
