"""Contenders that compute nothing, and runs of theirs with figures that can be computed by hand."""

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
    requests: Sequence[BenchRequest], seconds: float, token: Callable[[int], int] = lambda place: place
) -> LoadRun:
    """One user after the other; each answer takes `seconds`, its first token half of that."""
    outcomes = []
    for place, request in enumerate(requests):
        start, count = place * seconds, request.output_tokens
        times = [start + seconds / 2 + seconds / 2 * number / max(1, count - 1) for number in range(count)]
        ids = tuple(token(number) for number in range(count))
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
class MadeUp:
    """A contender whose answers take `seconds` each."""

    name: str
    seconds: float
    journal: list[str]
    breaks_in_life: int = 0
    """From 1; its runs fail then."""
    token: Callable[[int], int] = lambda place: place
    facts: Facts = FACTS
    lives: int = field(default=0, init=False)

    def start(self, log: Path) -> MadeUpRunning:
        self.lives += 1
        self.journal.append(f"{self.name} starts")
        return MadeUpRunning(self)


@dataclass(slots=True)
class MadeUpRunning:
    """One life."""

    contender: MadeUp
    pid: int = 1 << 30
    """Of no process."""
    start_up_seconds: float = 1.5

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        mine = self.contender
        if mine.lives == mine.breaks_in_life:
            raise Broken(f"{mine.name} broke")
        mine.journal.append(f"{mine.name} {len(requests)} by {num_users}")
        return made_run(requests, mine.seconds, mine.token)

    def end(self) -> None:
        self.contender.journal.append(f"{self.contender.name} ends")


def results_of(rounds: Rounds) -> Results:
    """What was measured, as `make bench` would report it."""
    return Results(
        command="bench",
        when="now",
        machine={},
        model="model",
        workloads={shape.name: shape.describe() for shape in rounds.shapes},
        num_rounds=rounds.num_rounds,
        contenders={name: one.facts for name, one in rounds.contenders.items()},
        unavailable=rounds.broken,
        limits=rounds.limits,
        runs=rounds.runs(),
        lives=tuple(rounds.lives),
        warnings=(),
    )
