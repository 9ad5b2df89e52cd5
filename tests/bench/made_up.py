"""Fake contenders that compute nothing. The figures of their runs can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.workload import BenchRequest
from tests.bench.contender import Broken, Facts
from tests.bench.results import Results
from tests.bench.rounds import Rounds

FACTS = Facts("fp32", "fp32", "in process", 4.0, versions={"engine": "9"})


def made_run(
    requests: Sequence[BenchRequest], seconds: float, token: Callable[[int], int] = lambda index: index
) -> LoadRun:
    """Return a run of one request after the other. Each response takes `seconds`, its first token half of that."""
    outcomes = []
    for number, request in enumerate(requests):
        start, count = number * seconds, request.output_tokens
        times = [start + seconds / 2 + seconds / 2 * index / max(1, count - 1) for index in range(count)]
        ids = tuple(token(index) for index in range(count))
        outcomes.append(
            RequestOutcome(
                request.index,
                0,
                start,
                start,
                tuple(times),
                start + seconds,
                count,
                ids,
                request.prompt_tokens,
                "",
            )
        )
    return LoadRun(tuple(outcomes), len(requests) * seconds, 0.0, 0.0)


@dataclass(slots=True)
class FakeContender:
    """A fake contender that takes `seconds` for each response."""

    name: str
    seconds: float
    journal: list[str]
    breaks_in_life: int = 0
    """Number of the life in which its runs fail, from 1. 0: none."""
    token: Callable[[int], int] = lambda index: index
    facts: Facts = FACTS
    lives: int = field(default=0, init=False)

    def start(self, log: Path) -> MadeUpRunning:
        self.lives += 1
        self.journal.append(f"{self.name} starts")
        return MadeUpRunning(self)


@dataclass(slots=True)
class MadeUpRunning:
    """One life of a fake contender."""

    contender: FakeContender
    pid: int = 1 << 30
    """An id that no process has."""
    start_up_seconds: float = 1.5

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        contender = self.contender
        if contender.lives == contender.breaks_in_life:
            raise Broken(f"{contender.name} broke")
        contender.journal.append(f"{contender.name} {len(requests)} by {num_users}")
        return made_run(requests, contender.seconds, contender.token)

    def end(self) -> None:
        self.contender.journal.append(f"{self.contender.name} ends")


def results_of(rounds: Rounds) -> Results:
    """Return the results of `rounds` as `make bench` would report them."""
    return Results(
        command="bench",
        when="now",
        machine={},
        model="model",
        workloads={shape.name: shape.describe() for shape in rounds.shapes},
        num_rounds=rounds.num_rounds,
        contenders={name: contender.facts for name, contender in rounds.contenders.items()},
        unavailable=rounds.broken,
        limits=rounds.limits,
        runs=rounds.runs(),
        lives=tuple(rounds.lives),
        warnings=(),
    )
