"""`lmi simulate`, with step times from one trace, beside real runs of other configurations.

python -m tests.verify.simulation [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.server import properties_text
from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 39
TITLE = "lmi simulate, calibrated with one trace: ten other configurations within 15 % of real runs"

TRACED: dict[str, object] = {"max_rolling_batch_size": 32, "kv_cache_gb": 0.5}
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
_LENGTHS = ("--lengths", "spread")
LOAD = ("--users", "24", "--requests", "72", "--input-tokens", "96", "--output-tokens", "40", *_LENGTHS)
TRACE_LOAD = ("--users", "32", "--ramp", "1", "--requests", "128", "--input-tokens", "128", *_LENGTHS)
"""Steps of all sizes: the batch grows, and prompts are longer than those that are predicted."""
FIGURES: Mapping[str, tuple[str, ...]] = {
    "tokens/s": ("output_tokens_per_second",),
    "median TTFT": ("ttft", "p50"),
    "median TPOT": ("tpot", "p50"),
}
MAX_ERROR = 0.15
LIMIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """How often the real runs are repeated."""

    rounds: int = 5

    def verify(self, lab: Lab, report: Report) -> None:
        folder = lab.folder / "simulation"
        trace = _record(lab, folder)
        for name, options in CONFIGURATIONS.items():
            (folder / name).mkdir()
            text = properties_text(lab.model, **{**TRACED, **options})
            (folder / name / "serving.properties").write_text(text)
        asked = (*CONFIGURATIONS, "--rounds", str(self.rounds), *LOAD)
        measured = run_lmi(folder, "compare", *asked, seconds=LIMIT_SECONDS)[1]
        for name in CONFIGURATIONS:
            rounds = [one for one in measured["rounds"] if one["configuration"] == name]
            seeds = [measured["plan"]["seed"] + one["round"] for one in rounds]
            simulated = [self._simulate(folder, name, trace, seed) for seed in seeds]
            for words, keys in FIGURES.items():
                real = [_value(one["figures"], keys) for one in rounds]
                predicted = [_value(one["figures"], keys) for one in simulated]
                # Both had the same requests in each round. The machine may have been busy in one of them.
                ratios = [one / other for one, other in zip(predicted, real, strict=True)]
                error = statistics.median(ratios) - 1
                report.require(
                    abs(error) <= MAX_ERROR,
                    f"{name}: {words}: simulated {statistics.median(predicted):.3g}, measured"
                    f" {statistics.median(real):.3g} ({min(real):.3g} to {max(real):.3g}): {error:+.1%}",
                )

    def _simulate(self, folder: Path, name: str, trace: Path, seed: int) -> dict[str, Any]:
        asked = ("simulate", str(folder / name), "--calibrate", str(trace), "--seed", str(seed), *LOAD)
        return run_lmi(folder / "simulated", *asked, seconds=LIMIT_SECONDS)[1]


def _record(lab: Lab, folder: Path) -> Path:
    """The trace of a server whose load grows."""
    trace = folder / "steps.jsonl"
    folder.mkdir()
    with lab.ready("simulation/traced", **TRACED, step_trace=trace) as server:
        run_lmi(folder, "bench", server.base_url, *TRACE_LOAD, seconds=LIMIT_SECONDS)
    return trace


def _value(figures: Mapping[str, Any], keys: tuple[str, ...]) -> float:
    value: Any = figures
    for key in keys:
        value = value[key]
    return float(value)


verify = Simulation().verify

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--rounds", type=int, default=Simulation().rounds)
    run_alone(NUMBER, TITLE, Simulation(parser.parse_args().rounds).verify)
