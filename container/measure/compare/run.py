"""Run a comparison: one server at a time, rounds in turn, figures from the client and `/metrics`."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from container.measure.bench.arrivals import UserSession
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import failure, figures
from container.measure.bench.load import LoadRun, run_with_progress
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import BenchRequest, load_tokenizer, make_requests
from container.measure.compare.configurations import Configuration
from container.measure.compare.live import SharedServer, change_settings, shared_servers, tenant_headers
from container.measure.compare.plan import Plan, in_turn
from container.measure.compare.results import Comparison, End, RequestTiming, RoundResult, ServerRun
from container.measure.compare.scrape import MetricsSnapshot, NoMetrics, kv_use, sampling, scrape
from container.measure.compare.server_process import ReadyServer, ServerFailed, StartServer
from container.measure.compare.stopping import reason_to_stop
from container.measure.numbers import format_number, seconds
from container.progress import ProgressView
from container.run import launch
from container.run.stop_signals import StopRequested

_MAX_STEM = 100
"""Maximum characters of a configuration's name in the names of its files."""
_SIGNAL_SECONDS = 0.5
_END_SECONDS = 5.0
_SETTLE_SECONDS = 5.0
_SETTLE_POLL_SECONDS = 0.05


@functools.cache
def _requests(tokenizer: Path, scenario: Scenario, seed: int) -> tuple[BenchRequest, ...]:
    """Make the requests of one round, the same for configurations with the same tokenizer. Raises BenchError."""
    return make_requests(scenario.workload, load_tokenizer(tokenizer), seed)


@dataclass(slots=True)
class _ServerUse:
    """A running server and its use so far. Updated by the runner."""

    server: ReadyServer
    shared: SharedServer
    trace: Path | None
    """File that the server writes its steps to. Other servers may write it too if the configuration names it."""
    kept_trace: Path | None
    """File with the steps once the server has stopped."""
    rounds: list[int] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    """Names of the served configurations, one per round."""
    peak_memory: int | None = None
    """Peak memory in bytes; None until the server is stopped, or if unknown."""

    def stop(self) -> None:
        """Stop the server. Raises the errors of `ReadyServer.stop`."""
        self.peak_memory = self.server.peak_memory()
        try:
            self.server.stop()
        finally:
            if self.trace and self.kept_trace and self.trace != self.kept_trace:
                with contextlib.suppress(OSError):  # only the trace is lost
                    shutil.copyfile(self.trace, self.kept_trace)

    def result(self) -> ServerRun:
        return ServerRun(
            configurations=tuple(dict.fromkeys(self.served)),
            rounds=tuple(dict.fromkeys(self.rounds)),
            start_up_seconds=self.server.start_up_seconds,
            peak_memory_bytes=self.peak_memory,
        )

    @property
    def is_traced(self) -> bool:
        return self.trace is not None and self.trace.is_file()


@dataclass(frozen=True, slots=True)
class ComparisonRunner:
    """Runs a comparison."""

    configs: tuple[Configuration, ...]
    plan: Plan
    tokenizers: Mapping[str, Path]
    """Tokenizer by configuration: a folder with a tokenizer.json, or the file itself."""
    start: StartServer
    log_folder: Path
    view: ProgressView
    trace_folder: Path | None = None
    """Folder for step traces, with a file for each start of a server; None disables step traces."""
    admin_token: str = field(default_factory=secrets.token_urlsafe, repr=False)
    """Admin token of the servers whose live settings are changed."""
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Part of the tenants: a running server may have kept the prompts of an earlier comparison in its prefix cache."""

    def run(self) -> Comparison:
        """Run all rounds of all configurations. Failed requests are counted and do not end the run.

        A server that fails, another error of the system, or a stop signal ends it. The complete rounds are returned if
        there are any.

        Raises BenchError; ServerFailed, NoMetrics, OSError, StopRequested before the first complete round.
        """
        shared = {one.name: server for server in shared_servers(self.configs) for one in server.members}
        rounds: list[RoundResult] = []
        uses: list[_ServerUse] = []
        comparison = Comparison(self.configs, self.plan, (), ())
        started, end = time.monotonic(), End.AS_PLANNED
        try:
            while not (reason := reason_to_stop(comparison, time.monotonic() - started)):
                number = comparison.num_rounds + 1
                self._make_requests(number)  # in advance, so that no running server waits for them
                for name in in_turn(list(shared), number):
                    if not uses or uses[-1].shared is not shared[name]:
                        if uses:
                            uses[-1].stop()
                        uses.append(self._start(shared[name], len(uses) + 1, name, number))
                    rounds += self._rounds(uses[-1], name, number)
                comparison = replace(comparison, rounds=tuple(rounds))
            uses[-1].stop()
        except (ServerFailed, NoMetrics, OSError) as error:
            if not comparison.rounds:
                raise
            end, reason = End.SERVER_FAILED, str(error)
        except StopRequested:
            if not comparison.rounds:
                raise
            end, reason = End.INTERRUPTED, End.INTERRUPTED.value
        finally:
            if uses:
                uses[-1].server.kill()
        server_runs = tuple(use.result() for use in uses if use.served)
        return replace(comparison, server_runs=server_runs, stopped=reason, end=end)

    def _make_requests(self, number: int) -> None:
        seed = self.plan.round_seed(number)
        for tokenizer in self.tokenizers.values():
            for scenario in self.plan.scenarios:
                _requests(tokenizer, scenario, seed)

    def _start(self, shared: SharedServer, place: int, name: str, number: int) -> _ServerUse:
        """Start a server and warm it up. name: its next configuration; number: number of its first round."""
        config = shared.started_as
        stem = f"{place:02}-{re.sub(r'[^A-Za-z0-9_.=-]+', '_', config.name)[:_MAX_STEM]}"
        variables = {launch.ADMIN_TOKEN: self.admin_token} if shared.switches else {}
        trace = kept = None
        if self.trace_folder is not None and config.engine == "MPI" and not config.url:
            kept = self.trace_folder.absolute() / f"{stem}.jsonl"
            variables[launch.STEP_TRACE] = str(kept)
            trace = _of_first_copy(Path(config.set_value("option.step_trace") or kept), config)
            trace.unlink(missing_ok=True)
        self.view.start(f"{config.name}: starting")
        server = self.start(config, self.log_folder / f"{stem}.log", variables)
        try:
            self.view.finish()
            if server.start_up_seconds is not None:
                self.view.say(f"{config.name}: ready after {server.start_up_seconds:.1f} s")
            for scenario in self.plan.scenarios:
                short = scenario.warm_up()
                seed = self.plan.warm_up_seed(number)
                sessions = short.arrivals.sessions(_requests(self.tokenizers[name], short, seed), seed)
                self._load(server, name, sessions, f"{config.name}: {short.name}")
        except BaseException:
            server.kill()
            raise
        return _ServerUse(server, shared, trace, kept)

    def _rounds(self, use: _ServerUse, name: str, number: int) -> list[RoundResult]:
        """Run all scenarios of one round of a configuration."""
        if use.shared.switches:
            change_settings(name, use.server.url, self.admin_token, use.shared.settings(name))
        results = [self._round(use, name, scenario, number) for scenario in self.plan.scenarios]
        use.served.append(name)
        use.rounds.append(number)
        return results

    def _round(self, use: _ServerUse, name: str, scenario: Scenario, number: int) -> RoundResult:
        server, seed = use.server, self.plan.round_seed(number)
        requests = _requests(self.tokenizers[name], scenario, seed)
        sessions = scenario.arrivals.sessions(requests, seed)
        title = f"{name}: round {number}{self._of_rounds()}, {scenario.name}"
        before = _scrape_when_idle(server.url)
        started = time.monotonic()
        with sampling(lambda: scrape(server.url)) as samples:
            run = self._load(server, name, sessions, title)
        ended = time.monotonic()
        after = _scrape_when_idle(server.url)
        failures = [
            failure(outcome, request) for outcome, request in zip(run.outcomes, requests, strict=True)
        ]
        result = RoundResult(
            configuration=name,
            scenario=scenario.name,
            round=number,
            metrics=figures(run, requests, self.plan.slo),
            token_ids=tuple(
                () if failed else outcome.token_ids
                for outcome, failed in zip(run.outcomes, failures, strict=True)
            ),
            batches=after.batches_since(before),
            kv=kv_use(samples),
            counters=after.counters_since(before),
            requests=tuple(
                RequestTiming.of(outcome, request, failed)
                for outcome, request, failed in zip(run.outcomes, requests, failures, strict=True)
            ),
            started=started,
            ended=ended,
            step_trace=str(use.kept_trace) if use.is_traced else "",
        )
        self.view.say(_one_line(title, result))
        return result

    def _of_rounds(self) -> str:
        return "" if self.plan.stopping else f" of {self.plan.num_rounds}"

    def _load(self, server: ReadyServer, name: str, sessions: Sequence[UserSession], title: str) -> LoadRun:
        """Send the load from another thread, so that this thread handles a stop signal at once."""
        done: Future[LoadRun] = Future()

        def work() -> None:
            try:
                run = run_with_progress(
                    server.url,
                    DIALECTS[self.plan.dialect],
                    sessions,
                    self.plan.timeout_seconds,
                    self.view,
                    title,
                    tenant_headers(self.configs, name, self.run_id),
                )
                done.set_result(run)
            except BaseException as error:
                done.set_exception(error)

        thread = threading.Thread(target=work, name="load", daemon=True)
        thread.start()
        try:
            # Python runs signal handlers only in this thread, and only when it wakes up.
            while not wait([done], _SIGNAL_SECONDS).done:
                pass
            return done.result()
        except BaseException:
            server.kill()  # ends the requests in flight, and with them the other thread
            thread.join(_END_SECONDS)  # if the server keeps running, the thread ends with this process
            raise


def _of_first_copy(trace: Path, config: Configuration) -> Path:
    """Return the file that gets the steps. With several copies of the model it is the first copy's file."""
    alone = config.values.get("option.data_parallel_size", "1") == "1"
    return trace if alone else trace.with_stem(f"{trace.stem}-copy1")


def _one_line(title: str, result: RoundResult) -> str:
    measured = result.metrics
    batch = f", batch {format_number(result.batches.mean)}" if result.batches else ""
    return (
        f"{title}: {format_number(measured.output_tokens_per_second)} tokens/s, TTFT p50 {seconds(measured.ttft.p50)},"
        f" latency p90 {seconds(measured.latency.p90)}{batch}, {measured.num_errors} failed"
    )


def _scrape_when_idle(url: str) -> MetricsSnapshot:
    """Return the metrics of a server once it is idle, or after a few seconds even if it is not."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        snapshot = scrape(url)
        if snapshot.idle or time.monotonic() > deadline:
            return snapshot
        time.sleep(_SETTLE_POLL_SECONDS)
