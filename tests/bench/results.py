"""What a benchmark has measured: plain data."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.measure.bench.figures import Figures
from container.measure.bench.load import LoadRun
from tests.bench.contender import Facts
from tests.bench.limits import Limits


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one contender in one round."""

    contender: str
    workload: str
    round: int
    """From 1."""
    figures: Figures
    arithmetic_share: float
    """Of the machine's peak; NaN where it is unknown."""
    read_share: float
    """Of the machine's read bandwidth, for one stream only; else NaN."""
    answers_compared: int
    """Answers that have token ids here and at the first contender in the same round."""
    answers_equal: int
    """Those of them with the same tokens."""


@dataclass(frozen=True, slots=True)
class Life:
    """One contender's life: a start, all workloads of one or two rounds, an end."""

    contender: str
    rounds: tuple[int, ...]
    start_up_seconds: float
    peak_pss_bytes: int
    others_busy_cores: float
    """What other processes computed right before."""


@dataclass(frozen=True, slots=True)
class Results:
    """Everything."""

    command: str
    when: str
    machine: dict[str, Any]
    model: str
    workloads: dict[str, str]
    num_rounds: int
    contenders: dict[str, Facts]
    """The first is what ratios are of."""
    unavailable: dict[str, str]
    """Peers that could not be had, or broke, and why."""
    limits: Limits | None
    runs: tuple[Run, ...]
    lives: tuple[Life, ...]
    warnings: tuple[str, ...]

    @property
    def num_failed(self) -> int:
        return sum(run.figures.num_errors for run in self.runs)

    def of(self, contender: str, workload: str) -> tuple[Run, ...]:
        """By round."""
        found = [run for run in self.runs if (run.contender, run.workload) == (contender, workload)]
        return tuple(sorted(found, key=lambda run: run.round))


def equal_answers(run: LoadRun, base: LoadRun | None) -> tuple[int, int]:
    """Answers that have token ids in both runs of the same requests, and those of them that are the same."""
    pairs = [
        (mine.token_ids, theirs.token_ids)
        for mine, theirs in zip(run.outcomes, base.outcomes if base else (), strict=False)
        if mine.token_ids and theirs.token_ids
    ]
    return len(pairs), sum(mine == theirs for mine, theirs in pairs)


def write_json(results: Results, file: Path) -> None:
    """Times in seconds; null where there is no figure."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_without_nan(dataclasses.asdict(results)), indent=1) + "\n", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
