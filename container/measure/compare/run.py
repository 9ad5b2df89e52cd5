"""Carrying out a comparison: one server at a time, rounds in turn, figures from outside and from `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import failure, figures
from container.measure.bench.load import LoadRun, run_load
from container.measure.bench.workload import BenchRequest, load_tokenizer, make_requests
from container.measure.compare.configurations import Arm
from container.measure.compare.plan import Plan, Scenario, Stay, stays
from container.measure.compare.results import Comparison, RoundResult, StayResult
from container.measure.compare.scrape import Sampler, Snapshot, kv_use, scrape
from container.measure.compare.server_process import RunningArm, StartArm

_SIGNAL_SECONDS = 0.5
_SETTLE_SECONDS = 5.0
_SETTLE_POLL_SECONDS = 0.05


class Watcher(Protocol):
    """Observes the progress of a comparison."""

    def doing(self, text: str, total: int = 0) -> None:
        """What is done now; `total` requests belong to it, 0 where there are none to count."""

    def request_done(self) -> None:
        """One more; called from another thread."""

    def stay_ready(self, arm: Arm, seconds: float) -> None:
        """A server is up."""

    def round_done(self, result: RoundResult) -> None:
        """A round has ended."""


@dataclass(slots=True)
class Workloads:
    """Requests by configuration, scenario and seed, made once. Mutated by `requests` only."""

    tokenizers: Mapping[str, Path]
    """By configuration: a model folder with a tokenizer.json, or such a file."""
    _loaded: dict[Path, Tokenizer] = field(default_factory=dict)
    _made: dict[tuple[Path, Scenario, int], tuple[BenchRequest, ...]] = field(default_factory=dict)

    def requests(self, arm: str, scenario: Scenario, seed: int) -> tuple[BenchRequest, ...]:
        """The same for configurations with the same tokenizer. Raises `BenchError`."""
        path = self.tokenizers[arm]
        key = (path, scenario, seed)
        if key not in self._made:
            if path not in self._loaded:
                self._loaded[path] = load_tokenizer(path)
            self._made[key] = make_requests(scenario.workload(seed), self._loaded[path])
        return self._made[key]


@dataclass(frozen=True, slots=True)
class Runner:
    """A comparison, ready to run."""

    arms: tuple[Arm, ...]
    plan: Plan
    workloads: Workloads
    start: StartArm
    log_folder: Path
    watcher: Watcher

    def run(self) -> Comparison:
        """All rounds of all configurations.

        Requests that fail are counted, and the run goes on. Raises: `ArmFailed`, `NoMetrics`, `BenchError`.
        """
        rounds: list[RoundResult] = []
        lives: list[StayResult] = []
        by_name = {arm.name: arm for arm in self.arms}
        for number, stay in enumerate(stays([arm.name for arm in self.arms], self.plan.num_rounds)):
            results, life = self._stay(by_name[stay.configuration], stay, number)
            rounds += results
            lives.append(life)
        return Comparison(self.arms, self.plan, tuple(rounds), tuple(lives))

    def _stay(self, arm: Arm, stay: Stay, number: int) -> tuple[list[RoundResult], StayResult]:
        for scenario in self.plan.scenarios:  # before there is a server that would wait for it
            for round_number in stay.rounds:
                self.workloads.requests(arm.name, scenario, self.plan.round_seed(round_number))
        self.watcher.doing(f"{arm.name}: starting")
        server = self.start(arm, self.log_folder / f"{number + 1:02}-{arm.name}.log")
        try:
            self.watcher.stay_ready(arm, server.start_up_seconds)
            for scenario in self.plan.scenarios:
                self._warm_up(arm, server, scenario, stay.rounds[0])
            results = [
                self._round(arm, server, scenario, round_number)
                for round_number in stay.rounds
                for scenario in self.plan.scenarios
            ]
            life = StayResult(arm.name, stay.rounds, server.start_up_seconds, server.peak_memory())
            self.watcher.doing(f"{arm.name}: stopping")
            server.stop()
        finally:
            server.kill()
        return results, life

    def _warm_up(self, arm: Arm, server: RunningArm, scenario: Scenario, round_number: int) -> None:
        short = scenario.warm_up()
        requests = self.workloads.requests(arm.name, short, self.plan.warm_up_seed(round_number))
        self.watcher.doing(f"{arm.name}: {short.name}", len(requests))
        self._load(server, requests, short.num_users)

    def _round(self, arm: Arm, server: RunningArm, scenario: Scenario, round_number: int) -> RoundResult:
        requests = self.workloads.requests(arm.name, scenario, self.plan.round_seed(round_number))
        self.watcher.doing(
            f"{arm.name}: round {round_number} of {self.plan.num_rounds}, {scenario.name}", len(requests)
        )
        before = _settled(lambda: scrape(server.url))
        with Sampler(lambda: scrape(server.url)) as sampler:
            run = self._load(server, requests, scenario.num_users)
        result = RoundResult(
            configuration=arm.name,
            scenario=scenario.name,
            round=round_number,
            figures=figures(run, requests),
            token_ids=tuple(
                () if failure(outcome, request) else outcome.token_ids
                for outcome, request in zip(run.outcomes, requests, strict=True)
            ),
            batches=_settled(lambda: scrape(server.url)).batches_since(before),
            kv=kv_use(sampler.snapshots),
        )
        self.watcher.round_done(result)
        return result

    def _load(self, server: RunningArm, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        """In a thread of its own, so that a signal to stop is heard here at once."""
        with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
            try:
                future = pool.submit(
                    run_load,
                    server.url,
                    DIALECTS[self.plan.dialect],
                    requests,
                    num_users,
                    self.plan.timeout_seconds,
                    self.watcher.request_done,
                )
                # A signal that another thread takes is heard only when this one wakes.
                while not wait([future], _SIGNAL_SECONDS).done:
                    pass
                return future.result()
            except BaseException:
                server.kill()  # what is still in flight ends with its server
                raise


def _settled(look: Callable[[], Snapshot]) -> Snapshot:
    """A look at a server that has nothing to do any more; after a few seconds at whatever it does."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        seen = look()
        if seen.idle or time.monotonic() > deadline:
            return seen
        time.sleep(_SETTLE_POLL_SECONDS)
