"""Comparisons over HTTP with scripted servers: requests, measurements, failures."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import signal
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from container.measure.bench.workload import BenchError
from container.measure.compare import run as run_module
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import Plan, StoppingRule
from container.measure.compare.results import Comparison, End
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.scrape import NoMetrics, RoundCounters
from container.measure.compare.server_process import ReadyServer, ServerFailed, StartServer, server_starter
from container.measure.compare.summary import equality
from container.progress import LogLines
from container.run.stop_signals import StopRequested, StopSignals
from tests.container.measure.compare.fake_server import Behaviour, FakeServer, FakeServers
from tests.container.measure.compare.made_up import make_configuration, make_scenario
from tests.support.waiting import wait_until

SHORT = make_scenario("short", 8, 4, 3, 2)
LONG = make_scenario("long", 12, 2, 2, 2)
ONE_ROUND = Plan((SHORT,), 1, seed=0)


@dataclasses.dataclass
class Lab:
    """Runs comparisons with fake servers."""

    tokenizer: Path
    folder: Path
    fakes: FakeServers = dataclasses.field(default_factory=FakeServers)
    log: io.StringIO = dataclasses.field(default_factory=io.StringIO)

    def run(
        self,
        *configs: Configuration,
        plan: Plan = ONE_ROUND,
        start: StartServer | None = None,
        trace_folder: Path | None = None,
    ) -> Comparison:
        configs = configs or (make_configuration("a"), make_configuration("b"))
        tokenizers = {config.name: self.tokenizer for config in configs}
        start, view = start or self.fakes, LogLines(self.log)
        return ComparisonRunner(configs, plan, tokenizers, start, self.folder, view, trace_folder).run()


@pytest.fixture
def lab(tiny_model: Path, tmp_path: Path) -> Lab:
    return Lab(tiny_model, tmp_path)


def test_configurations_take_turns_and_get_the_same_prompts(lab: Lab) -> None:
    comparison, fakes = lab.run(plan=Plan((SHORT, LONG), 2, seed=5)), lab.fakes
    assert fakes.journal == ["start a", "stop a", "start b", "stop b", "start a", "stop a"]
    order = [(result.configuration, result.round, result.scenario) for result in comparison.rounds]
    assert order == [
        *(("a", 1, "short"), ("a", 1, "long")),
        *(("b", 1, "short"), ("b", 1, "long"), ("b", 2, "short"), ("b", 2, "long")),
        *(("a", 2, "short"), ("a", 2, "long")),
    ]
    # Each server starts with a warm-up of 2 requests per scenario. A round has 3 and 2 requests.
    first, third = [life.prompts[4:] for life in fakes.lives["a"]]
    (second,) = [life.prompts[4:] for life in fakes.lives["b"]]
    assert sorted(second) == sorted([*first, *third])
    assert len(set(second)) == 10
    warm_ups = {prompt for lives in fakes.lives.values() for life in lives for prompt in life.prompts[:4]}
    assert not warm_ups & set(second)
    log = lab.log.getvalue()
    assert log.count("ready after 1.5 s") == 3
    assert log.count(", latency p90 ") == len(comparison.rounds)
    assert "a: round 1 of 2, short: 100 %" in log
    assert [run.rounds for run in comparison.server_runs] == [(1,), (1, 2), (2,)]
    assert {run.start_up_seconds for run in comparison.server_runs} == {1.5}


def test_files_of_a_configuration_with_a_long_name_have_short_names(lab: Lab) -> None:
    lab.run(make_configuration("a" * 300), make_configuration("a" * 299 + "b"))
    names = [path.name for path in lab.folder.iterdir() if path.suffix == ".log"]
    assert len(names) == 2
    assert max(map(len, names)) < 120


def test_figures_exclude_the_warm_up_and_times_are_relative_to_the_start_of_the_round(lab: Lab) -> None:
    before = time.monotonic()
    comparison = lab.run()
    for result in comparison.rounds:
        assert (result.metrics.num_requests, result.metrics.num_errors) == (3, 0)
        assert result.metrics.output_tokens == 12
        assert result.batches is not None
        # 4 steps for each of the round's 3 requests, without those of the warm-up.
        assert (result.batches.count, result.batches.mean) == (12, 3.0)
        assert result.counters == RoundCounters(preemptions=3)
    first, second = comparison.rounds
    assert before <= first.started < first.ended <= second.started < second.ended <= time.monotonic()
    assert len(first.requests) == 3
    for one in first.requests:
        assert 0 <= one.due <= one.sent <= one.due + one.ttft <= one.ended <= first.ended - first.started
        assert (one.prompt_tokens, one.output_tokens, one.error) == (8, 4, "")
    latencies = [one.ended - one.due for one in first.requests]
    assert first.metrics.latency.mean == pytest.approx(statistics.fmean(latencies))
    times_per_token = statistics.fmean(one.tpot for one in first.requests)
    assert first.metrics.tpot.mean == pytest.approx(times_per_token, rel=1e-9)


@pytest.mark.parametrize("settling_looks", [2, 10**9], ids=["idle after a while", "never idle"])
def test_counters_are_read_when_the_server_is_idle_or_after_a_few_seconds(
    settling_looks: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.fakes.behaviours = dict.fromkeys("ab", Behaviour(settling_looks=settling_looks))
    if settling_looks > 2:
        monkeypatch.setattr(run_module, "_SETTLE_SECONDS", 0.0)
    steps = [result.batches.count for result in lab.run().rounds if result.batches]
    assert steps == ([12, 12] if settling_looks == 2 else [4, 4])


def test_rounds_continue_until_the_stopping_rule_is_met(lab: Lab) -> None:
    plan = dataclasses.replace(ONE_ROUND, stopping=StoppingRule(None, max_rounds=3))
    comparison = lab.run(plan=plan)
    assert (comparison.num_rounds, comparison.stopped) == (3, "the limit of 3 rounds was reached")
    assert lab.fakes.journal == [
        *("start a", "stop a", "start b", "stop b", "start a", "stop a", "start b", "stop b"),
    ]
    assert "a: round 1, short" in lab.log.getvalue()
    timed_out = lab.run(plan=dataclasses.replace(plan, stopping=StoppingRule(0.5, 9, 0.0)))
    assert (timed_out.num_rounds, timed_out.stopped) == (1, "the time limit was reached")


def test_configurations_that_share_a_server_use_different_tenants(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes, tokens = lab.fakes, set()

    def change(name: str, url: str, token: str, settings: dict[str, Any]) -> None:
        tokens.add(token)
        fakes.journal.append(f"change to {name}: {settings['max_rolling_batch_size']}")

    monkeypatch.setattr(run_module, "change_settings", change)
    sizes = {"a": "8", "b": "16"}
    configs = [
        make_configuration(name, kv_cache_gb="1", max_rolling_batch_size=size) for name, size in sizes.items()
    ]
    configs.insert(1, make_configuration("other", engine="Python"))
    comparison = lab.run(*configs, plan=Plan((SHORT,), 2, seed=0))
    assert fakes.journal == [
        *("start b", "change to a: 8", "change to b: 16", "stop b"),
        *("start other", "stop other"),
        *("start b", "change to b: 16", "change to a: 8", "stop b"),
    ]
    assert [run.configurations for run in comparison.server_runs] == [("a", "b"), ("other",), ("b", "a")]
    assert [run.rounds for run in comparison.server_runs] == [(1,), (1, 2), (2,)]
    started = [variables.get("LMI_ADMIN_TOKEN") for variables in fakes.variables]
    assert started == [*tokens, None, *tokens]
    tenants = {one.headers["X-Tenant-Id"] for life in fakes.lives["b"] for one in life.seen}
    assert sorted(tenant.rpartition("-")[2] for tenant in tenants) == ["0", "2"]


def test_running_servers_are_measured_but_not_stopped(lab: Lab) -> None:
    server = FakeServer(make_configuration("running"), Behaviour(), [])
    configs = [
        dataclasses.replace(
            make_configuration(name), url=server.url, path=None, model_folder=None, tokenizer=None
        )
        for name in ("a", "b")
    ]
    comparison = lab.run(*configs, start=server_starter({}))
    assert [result.metrics.num_errors for result in comparison.rounds] == [0, 0]
    assert {(run.start_up_seconds, run.peak_memory_bytes) for run in comparison.server_runs} == {(None, None)}
    same = equality(comparison, "b", "a", "short")
    assert same is not None
    assert (same.num_requests, same.num_identical) == (3, 3)
    assert not server.over.is_set()
    # The server may still have the prompts of the first comparison in its prefix cache, but only for their tenants.
    earlier = {one.headers["X-Tenant-Id"] for one in server.seen}
    count = len(server.seen)
    lab.run(*configs, start=server_starter({}))
    assert not earlier & {one.headers["X-Tenant-Id"] for one in server.seen[count:]}
    assert len(earlier) == 2
    server.kill()


def test_only_rolling_servers_write_step_traces(lab: Lab, tmp_path: Path) -> None:
    fakes, traces = lab.fakes, tmp_path / "traces"
    traces.mkdir()

    def write_a_trace(server: FakeServer, number: int) -> None:
        Path(fakes.variables[-1]["OPTION_STEP_TRACE"]).touch()

    fakes.behaviours["a/1"] = Behaviour(before_answer=write_a_trace)
    configs = [make_configuration("a/1", step_trace="(none)"), make_configuration("b", engine="Python")]
    comparison = lab.run(*configs, trace_folder=traces)
    assert [one.step_trace for one in comparison.rounds] == [str(traces / "01-a_1.jsonl"), ""]
    assert "OPTION_STEP_TRACE" not in fakes.variables[1]


def test_a_trace_file_that_all_servers_write_is_kept_per_server(lab: Lab, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"

    def write_own_trace(server: FakeServer, number: int) -> None:
        own.write_text(lab.fakes.journal[-1])

    lab.fakes.behaviours = dict.fromkeys("ab", Behaviour(before_answer=write_own_trace))
    configs = [make_configuration(name, step_trace=str(own)) for name in ("a", "b")]
    (tmp_path / "01-a.jsonl").write_text("trace of an earlier comparison")
    comparison = lab.run(*configs, trace_folder=tmp_path)
    assert [Path(one.step_trace).read_text() for one in comparison.rounds] == ["start a", "start b"]


def test_the_step_trace_is_that_of_the_first_copy(lab: Lab, tmp_path: Path) -> None:
    def write_traces(server: FakeServer, number: int) -> None:
        trace = Path(lab.fakes.variables[-1]["OPTION_STEP_TRACE"])
        for copy in (1, 2):
            trace.with_stem(f"{trace.stem}-copy{copy}").write_text(str(copy))

    lab.fakes.behaviours["a"] = Behaviour(before_answer=write_traces)
    configs = [make_configuration("a", data_parallel_size="2"), make_configuration("b", engine="Python")]
    comparison = lab.run(*configs, trace_folder=tmp_path)
    assert Path(comparison.rounds[0].step_trace).read_text() == "1"


def test_kv_use_is_sampled_during_the_round(lab: Lab) -> None:
    def wait_for_a_sample(server: FakeServer, number: int) -> None:
        if number == 2:  # the first request of the round, after two of the warm-up
            server.looked.clear()
            assert server.looked.wait(200.0)

    waiting = Behaviour(before_answer=wait_for_a_sample)
    lab.fakes.behaviours = {"a": waiting, "b": dataclasses.replace(waiting, kv=False)}
    comparison = lab.run()
    kv = comparison.of("a", "short")[0].kv
    assert kv is not None
    assert (kv.slots_total, kv.mean_allocated, kv.waste) == (160.0, 32.0, 0.5)
    assert comparison.of("b", "short")[0].kv is None


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (
            Behaviour(refuses=lambda body: body["parameters"]["max_new_tokens"] == 4),
            "HTTP 424: no such thing",
        ),
        (Behaviour(input_length=99), "the server counts 99 prompt tokens, the client 8"),
    ],
    ids=["refused", "wrong prompt length"],
)
def test_failed_requests_are_counted_and_have_no_tokens(lab: Lab, behaviour: Behaviour, error: str) -> None:
    lab.fakes.behaviours["b"] = behaviour
    comparison = lab.run()
    (failed,) = comparison.of("b", "short")
    assert failed.metrics.num_errors == 3
    assert failed.metrics.errors[0].text.startswith(error)
    assert failed.token_ids == ((), (), ())
    assert comparison.num_failed == 3


@pytest.mark.parametrize(
    ("behaviour", "error", "end"),
    [
        (Behaviour(metrics_text="<html>"), NoMetrics, "kill a"),
        (Behaviour(exit_code=1), ServerFailed, "stop a"),
    ],
    ids=["no metrics", "exit code 1"],
)
def test_a_server_that_fails_ends_the_comparison(
    lab: Lab, behaviour: Behaviour, error: type[Exception], end: str
) -> None:
    lab.fakes.behaviours["a"] = behaviour
    with pytest.raises(error):
        lab.run()
    assert lab.fakes.journal == ["start a", end]


@pytest.mark.parametrize(
    ("behaviour", "reason", "journal", "rounds_of_servers"),
    [
        (
            Behaviour(exit_code=1),
            "a: the server exited with code 1",
            ["start a", "stop a", "start b", "stop b", "start a", "stop a"],
            [(1,), (1, 2), (2,)],
        ),
        (
            Behaviour(metrics_text="<html>"),
            "/metrics is not in the text format of Prometheus",
            ["start a", "stop a", "start b", "stop b", "start a", "kill a"],
            [(1,), (1, 2)],
        ),
    ],
    ids=["exit code at the last stop", "no metrics in the last round"],
)
def test_complete_rounds_are_kept_when_a_server_fails(
    lab: Lab, behaviour: Behaviour, reason: str, journal: list[str], rounds_of_servers: list[tuple[int, ...]]
) -> None:
    def start(config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        if lab.fakes.journal.count("start a"):
            lab.fakes.behaviours["a"] = behaviour
        return lab.fakes(config, log, variables)

    comparison = lab.run(plan=Plan((SHORT, LONG), 2, seed=5), start=start)
    assert comparison.end is End.SERVER_FAILED
    assert comparison.stopped.startswith(reason)
    assert lab.fakes.journal == journal
    assert comparison.num_rounds == (2 if behaviour.exit_code else 1)
    assert {len(comparison.of(name, one.name)) for name in "ab" for one in (SHORT, LONG)} == {
        comparison.num_rounds
    }
    assert [run.rounds for run in comparison.server_runs] == rounds_of_servers


def test_complete_rounds_are_kept_when_the_system_refuses_a_server(lab: Lab) -> None:
    def start(config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        if config.name == "a" and "start a" in lab.fakes.journal:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return lab.fakes(config, log, variables)

    comparison = lab.run(plan=Plan((SHORT,), 2, seed=5), start=start)
    assert (comparison.end, comparison.num_rounds) == (End.SERVER_FAILED, 1)
    assert "Resource temporarily unavailable" in comparison.stopped


def test_no_server_starts_if_the_workload_cannot_be_built(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(BenchError):
        dataclasses.replace(lab, tokenizer=tmp_path / "nothing").run()
    assert lab.fakes.journal == []


def test_sigterm_kills_the_server_and_ends_the_comparison_immediately(lab: Lab) -> None:
    stopped_in_time: list[bool] = []

    def send_sigterm(server: FakeServer, number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        stopped_in_time.append(server.over.wait(200.0))

    lab.fakes.behaviours["a"] = Behaviour(before_answer=send_sigterm)
    with StopSignals(), pytest.raises(StopRequested):
        lab.run()
    assert lab.fakes.journal == ["start a", "kill a"]
    assert all(stopped_in_time)
    wait_until(lambda: not any(thread.name.startswith("load") for thread in threading.enumerate()))


def test_complete_rounds_are_kept_after_a_stop_signal(lab: Lab) -> None:
    def start(config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        if config.name == "a" and "start a" in lab.fakes.journal:
            os.kill(os.getpid(), signal.SIGTERM)
        return lab.fakes(config, log, variables)

    with StopSignals():
        comparison = lab.run(plan=Plan((SHORT,), 2, seed=5), start=start)
    assert (comparison.end, comparison.num_rounds) == (End.INTERRUPTED, 1)
    assert {len(comparison.of(name, "short")) for name in "ab"} == {1}
    assert lab.fakes.journal == ["start a", "stop a", "start b", "stop b"]
