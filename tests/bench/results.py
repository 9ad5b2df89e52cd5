"""Results of a benchmark, as plain data."""

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
    """Number of the round, from 1."""
    figures: Figures
    arithmetic_share: float
    """Share of the machine's peak. NaN if unknown."""
    read_share: float
    """Share of the machine's read bandwidth. NaN unless there is only one stream."""
    answers_compared: int
    """Responses with token ids, both here and from the first contender in the same round."""
    answers_equal: int
    """Compared responses with equal tokens."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a contender: start, all workloads of one or two rounds, stop."""

    contender: str
    rounds: tuple[int, ...]
    start_up_seconds: float
    peak_pss_bytes: int
    others_busy_cores: float
    """Cores that other processes kept busy right before the start."""


@dataclass(frozen=True, slots=True)
class Results:
    """All results of a benchmark."""

    command: str
    when: str
    machine: dict[str, Any]
    model: str
    workloads: dict[str, str]
    num_rounds: int
    contenders: dict[str, Facts]
    """Facts by name. Ratios compare the first contender with the others."""
    unavailable: dict[str, str]
    """Peers that were not available or broke, with the reason."""
    limits: Limits | None
    runs: tuple[Run, ...]
    lives: tuple[Life, ...]
    warnings: tuple[str, ...]

    @property
    def num_failed(self) -> int:
        return sum(run.figures.num_errors for run in self.runs)

    def of(self, contender: str, workload: str) -> tuple[Run, ...]:
        """Return the runs of a contender and workload, ordered by round."""
        found = [run for run in self.runs if (run.contender, run.workload) == (contender, workload)]
        return tuple(sorted(found, key=lambda run: run.round))


def equal_answers(run: LoadRun, base: LoadRun | None) -> tuple[int, int]:
    """Count the responses with token ids in both runs of the same requests, and how many of them are equal."""
    pairs = [
        (mine.token_ids, theirs.token_ids)
        for mine, theirs in zip(run.outcomes, base.outcomes if base else (), strict=False)
        if mine.token_ids and theirs.token_ids
    ]
    return len(pairs), sum(mine == theirs for mine, theirs in pairs)


def write_json(results: Results, file: Path) -> None:
    """Write the results as JSON. Times are in seconds; missing figures are null."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_without_nan(dataclasses.asdict(results)), indent=1) + "\n", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    """Replace NaN by None, since JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
