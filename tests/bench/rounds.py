"""Run a benchmark: contenders take turns, one at a time, each with all workloads of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from tokenizers import Tokenizer

from container.measure.bench.figures import figures
from container.measure.bench.load import LoadRun
from container.measure.bench.workload import BenchRequest
from tests.bench.contender import Broken, Contender, Running
from tests.bench.limits import Limits, arithmetic_share, combined, read_share
from tests.bench.memory import PeakPss, tree_pss
from tests.bench.model import Matrices
from tests.bench.quiet import Load
from tests.bench.results import Life, Run, equal_answers
from tests.bench.stays import Stay, stays
from tests.bench.workloads import Shape, warm_up_seed


@dataclass(frozen=True, slots=True)
class _Measured:
    contender: str
    shape: Shape
    round: int
    run: LoadRun
    life: int
    """Index of the life of an engine in which it was measured."""


@dataclass(slots=True)
class Rounds:
    """A benchmark that is ready to run. Measurements are kept if `run` raises."""

    contenders: Mapping[str, Contender]
    shapes: Sequence[Shape]
    num_rounds: int
    tokenizer: Tokenizer
    matrices: Matrices | None
    logs: Path
    quiet: Callable[[], Load]
    """Wait until other processes are idle. May raise `Busy`."""
    measure_limits: Callable[[], Limits | None]
    say: Callable[[str], None]
    lives: list[Life] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    _limits: list[Limits | None] = field(default_factory=list)
    """Measured before each life of an engine, and after the last."""
    _measured: list[_Measured] = field(default_factory=list)
    _cached_requests: dict[tuple[str, int], tuple[BenchRequest, ...]] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The contender that ratios compare with the others."""
        return next(iter(self.contenders))

    @property
    def limits(self) -> Limits | None:
        """The highest rates that were measured."""
        return combined(self._limits, max)

    def run(self) -> None:
        """Run all rounds. A peer that breaks is left out from then on. Raises: Busy; Broken for the first contender."""
        for index, stay in enumerate(stays(list(self.contenders), self.num_rounds), 1):
            if stay.configuration in self.broken:
                continue
            load = self.quiet()
            self._limits.append(self.measure_limits())
            try:
                self._run_stay(stay, load, self.logs / f"{index:02}-{stay.configuration}.log")
            except Broken as error:
                if stay.configuration == self.first:
                    raise
                self.say(str(error))
                self.broken[stay.configuration] = str(error)
        self._limits.append(self.measure_limits())

    def runs(self) -> tuple[Run, ...]:
        """Return the measurements so far."""
        firsts = {
            (one.shape.name, one.round): one.run for one in self._measured if one.contender == self.first
        }
        return tuple(self._summarize(one, firsts.get((one.shape.name, one.round))) for one in self._measured)

    def _run_stay(self, stay: Stay, load: Load, log: Path) -> None:
        for shape in self.shapes:  # before an engine is started, which would have to wait
            for number in stay.rounds:
                self._requests(shape, number)
        self.say(f"{stay.configuration}: starting")
        life = len(self._limits) - 1
        running = self.contenders[stay.configuration].start(log)
        try:
            with PeakPss(lambda: tree_pss(running.pid)) as pss:
                self._warm_up(running, stay.rounds[0])
            for number in stay.rounds:
                for shape in self.shapes:
                    run = running.load(self._requests(shape, number), shape.num_users)
                    self._measured.append(_Measured(stay.configuration, shape, number, run, life))
                    self._report(self._measured[-1])
                    pss.look()
            seconds = running.start_up_seconds
            self.lives.append(Life(stay.configuration, stay.rounds, seconds, pss.bytes, load.cores))
        finally:
            running.end()

    def _warm_up(self, running: Running, number: int) -> None:
        for shape in self.shapes:
            short = shape.warm_up()
            running.load(short.requests(self.tokenizer, warm_up_seed(number)), short.num_users)

    def _report(self, measured: _Measured) -> None:
        found = figures(measured.run, self._requests(measured.shape, measured.round))
        self.say(
            f"{measured.contender}: round {measured.round} of {self.num_rounds}, {measured.shape.name}:"
            f" {found.output_tokens_per_second:.1f} tokens/s, {found.num_errors} failed"
        )

    def _summarize(self, measured: _Measured, first: LoadRun | None) -> Run:
        requests = self._requests(measured.shape, measured.round)
        found = figures(measured.run, requests)
        facts = self.contenders[measured.contender].facts
        arithmetic = read = math.nan
        limits = combined(self._limits[measured.life : measured.life + 2], mean)
        if self.matrices is not None and limits is not None:
            arithmetic = arithmetic_share(self.matrices, requests, found.wall_seconds, facts, limits)
            if measured.shape.num_users == 1:
                read = read_share(self.matrices, found.output_tokens_per_second, facts, limits)
        compared, equal = equal_answers(measured.run, first)
        return Run(
            contender=measured.contender,
            workload=measured.shape.name,
            round=measured.round,
            figures=found,
            arithmetic_share=arithmetic,
            read_share=read,
            answers_compared=compared,
            answers_equal=equal,
        )

    def _requests(self, shape: Shape, number: int) -> tuple[BenchRequest, ...]:
        """Return the requests of a round. They are made once, so all contenders get the same ones."""
        key = (shape.name, number)
        if key not in self._cached_requests:
            self._cached_requests[key] = shape.requests(self.tokenizer, number)
        return self._cached_requests[key]
