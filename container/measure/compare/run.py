"""Run a comparison: one server at a time, rounds in turn, figures from the client and from `/metrics`."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from container.measure.bench.arrivals import UserSession
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import failure, figures
from container.measure.bench.load import LoadRun, run_with_progress
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import BenchRequest, load_tokenizer, make_requests
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import Plan, Stay, stays
from container.measure.compare.results import Comparison, RoundResult, StayResult
from container.measure.compare.scrape import MetricsSnapshot, kv_use, sampling, scrape
from container.measure.compare.server_process import ReadyServer, StartServer
from container.measure.numbers import number, seconds
from container.progress import ProgressView

_SIGNAL_SECONDS = 0.5
_SETTLE_SECONDS = 5.0
_SETTLE_POLL_SECONDS = 0.05


@functools.cache
def _requests(tokenizer: Path, scenario: Scenario, seed: int) -> tuple[BenchRequest, ...]:
    """Requests of one round, the same for configurations with the same tokenizer. Raises BenchError."""
    return make_requests(scenario.workload, load_tokenizer(tokenizer), seed)


@dataclass(frozen=True, slots=True)
class ComparisonRunner:
    """A comparison, ready to run."""

    configs: tuple[Configuration, ...]
    plan: Plan
    tokenizers: Mapping[str, Path]
    """By configuration: a folder with a tokenizer.json, or such a file."""
    start: StartServer
    log_folder: Path
    view: ProgressView

    def run(self) -> Comparison:
        """Run all rounds of all configurations. Failed requests are counted and do not end the run.

        Raises: ServerFailed, NoMetrics, BenchError.
        """
        rounds: list[RoundResult] = []
        lives: list[StayResult] = []
        by_name = {config.name: config for config in self.configs}
        for place, stay in enumerate(stays(list(by_name), self.plan.num_rounds), start=1):
            results, life = self._stay(by_name[stay.configuration], stay, place)
            rounds += results
            lives.append(life)
        return Comparison(self.configs, self.plan, tuple(rounds), tuple(lives))

    def _stay(self, config: Configuration, stay: Stay, place: int) -> tuple[list[RoundResult], StayResult]:
        tokenizer = self.tokenizers[config.name]
        for scenario in self.plan.scenarios:  # made before a server runs that would have to wait for them
            for round_number in stay.rounds:
                _requests(tokenizer, scenario, self.plan.round_seed(round_number))
        self.view.start(f"{config.name}: starting")
        server = self.start(config, self.log_folder / f"{place:02}-{config.name}.log")
        try:
            self.view.finish()
            self.view.say(f"{config.name}: ready after {server.start_up_seconds:.1f} s")
            for scenario in self.plan.scenarios:
                short = scenario.warm_up()
                seed = self.plan.warm_up_seed(stay.rounds[0])
                sessions = short.arrivals.sessions(_requests(tokenizer, short, seed), seed)
                self._load(server, sessions, f"{config.name}: {short.name}")
            results = [
                self._round(config.name, server, scenario, round_number)
                for round_number in stay.rounds
                for scenario in self.plan.scenarios
            ]
            life = StayResult(config.name, stay.rounds, server.start_up_seconds, server.peak_memory())
            server.stop()
        finally:
            server.kill()
        return results, life

    def _round(self, name: str, server: ReadyServer, scenario: Scenario, round_number: int) -> RoundResult:
        seed = self.plan.round_seed(round_number)
        requests = _requests(self.tokenizers[name], scenario, seed)
        sessions = scenario.arrivals.sessions(requests, seed)
        title = f"{name}: round {round_number} of {self.plan.num_rounds}, {scenario.name}"
        before = _scrape_when_idle(server.url)
        with sampling(lambda: scrape(server.url)) as samples:
            run = self._load(server, sessions, title)
        result = RoundResult(
            configuration=name,
            scenario=scenario.name,
            round=round_number,
            figures=figures(run, requests),
            token_ids=tuple(
                () if failure(outcome, request) else outcome.token_ids
                for outcome, request in zip(run.outcomes, requests, strict=True)
            ),
            batches=_scrape_when_idle(server.url).batches_since(before),
            kv=kv_use(samples),
        )
        self.view.say(_one_line(title, result))
        return result

    def _load(self, server: ReadyServer, sessions: Sequence[UserSession], title: str) -> LoadRun:
        """Put the load on from another thread, so that this one handles a stop signal at once."""
        with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
            try:
                future = pool.submit(
                    run_with_progress,
                    server.url,
                    DIALECTS[self.plan.dialect],
                    sessions,
                    self.plan.timeout_seconds,
                    self.view,
                    title,
                )
                # Python runs signal handlers only in this thread, and only when it wakes up.
                while not wait([future], _SIGNAL_SECONDS).done:
                    pass
                return future.result()
            except BaseException:
                server.kill()  # ends the requests in flight, and with them the other thread
                raise


def _one_line(title: str, result: RoundResult) -> str:
    measured = result.figures
    batch = f", batch {number(result.batches.mean)}" if result.batches else ""
    return (
        f"{title}: {number(measured.output_tokens_per_second)} tokens/s, TTFT p50 {seconds(measured.ttft.p50)},"
        f" latency p90 {seconds(measured.latency.p90)}{batch}, {measured.num_errors} failed"
    )


def _scrape_when_idle(url: str) -> MetricsSnapshot:
    """The metrics of a server without running requests; after a few seconds, whatever it does."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        snapshot = scrape(url)
        if snapshot.idle or time.monotonic() > deadline:
            return snapshot
        time.sleep(_SETTLE_POLL_SECONDS)
