"""Comparisons over HTTP with scripted servers: requests, measurements, failures."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from container.measure.bench.workload import BenchError
from container.measure.compare import run as run_module
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import Plan, StoppingRule
from container.measure.compare.results import Comparison
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.scrape import NoMetrics, RoundCounters
from container.measure.compare.server_process import ServerFailed, server_starter
from container.measure.compare.summary import equality
from container.progress import LogLines
from container.run.stop_signals import StopRequested, StopSignals
from tests.container.measure.compare.fake_server import Behaviour, FakeServer, FakeServers, plain_token
from tests.container.measure.compare.made_up import make_configuration, make_scenario
from tests.lmi_server.fakes import build_model_folder
from tests.support.waiting import wait_until

SHORT = make_scenario("short", 8, 4, 3, 2)
LONG = make_scenario("long", 12, 2, 2, 2)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model_folder(tmp_path_factory.mktemp("model"))


def run(
    fakes: FakeServers, model: Path, tmp_path: Path, plan: Plan, *names: str, **options: Any
) -> tuple[Comparison, str]:
    """Return the comparison and the log."""
    return run_configurations(
        fakes, model, tmp_path, plan, [make_configuration(name) for name in names], **options
    )


def run_configurations(
    fakes: FakeServers,
    model: Path,
    tmp_path: Path,
    plan: Plan,
    configs: Sequence[Configuration],
    **options: Any,
) -> tuple[Comparison, str]:
    log = io.StringIO()
    tokenizers = {config.name: model for config in configs}
    runner = ComparisonRunner(tuple(configs), plan, tokenizers, fakes, tmp_path, LogLines(log), **options)
    return runner.run(), log.getvalue()


def test_configurations_take_turns_and_get_the_same_prompts(model: Path, tmp_path: Path) -> None:
    fakes = FakeServers()
    comparison, log = run(fakes, model, tmp_path, Plan((SHORT, LONG), 2, seed=5), "a", "b")
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
    assert log.count("ready after 1.5 s") == 3
    assert log.count(", latency p90 ") == len(comparison.rounds)
    assert "a: round 1 of 2, short: 100 %" in log
    assert [stay.rounds for stay in comparison.stays] == [(1,), (1, 2), (2,)]
    assert {stay.start_up_seconds for stay in comparison.stays} == {1.5}


def test_figures_batches_and_counters_exclude_the_warm_up(model: Path, tmp_path: Path) -> None:
    comparison, _ = run(FakeServers(), model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    for result in comparison.rounds:
        assert (result.figures.num_requests, result.figures.num_errors) == (3, 0)
        assert result.figures.output_tokens == 12
        assert result.batches is not None
        # 4 steps for each of the round's 3 requests, without those of the warm-up.
        assert (result.batches.count, result.batches.mean) == (12, 3.0)
        assert result.counters == RoundCounters(preemptions=3)


def test_request_times_are_relative_to_the_start_of_the_round(model: Path, tmp_path: Path) -> None:
    before = time.monotonic()
    comparison, _ = run(FakeServers(), model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    first, second = comparison.rounds
    assert before <= first.began < first.ended <= second.began < second.ended <= time.monotonic()
    assert len(first.requests) == 3
    for one in first.requests:
        assert 0 <= one.due <= one.sent <= one.due + one.ttft <= one.ended <= first.ended - first.began
        assert (one.prompt_tokens, one.output_tokens, one.error) == (8, 4, "")
    latencies = [one.ended - one.due for one in first.requests]
    assert first.figures.latency.mean == pytest.approx(statistics.fmean(latencies))
    times_per_token = statistics.fmean(one.tpot for one in first.requests)
    assert first.figures.tpot.mean == pytest.approx(times_per_token, rel=1e-9)


def test_rounds_continue_until_the_stopping_rule_is_met(model: Path, tmp_path: Path) -> None:
    plan = Plan((SHORT,), 1, seed=0, stopping=StoppingRule(None, max_rounds=3))
    fakes = FakeServers()
    comparison, log = run(fakes, model, tmp_path, plan, "a", "b")
    assert comparison.num_rounds == 3
    assert comparison.stopped == "the limit of 3 rounds was reached"
    assert fakes.journal == [
        *("start a", "stop a", "start b", "stop b", "start a", "stop a", "start b", "stop b"),
    ]
    assert "a: round 1, short" in log
    timed_out, _ = run(
        FakeServers(),
        model,
        tmp_path,
        dataclasses.replace(plan, stopping=StoppingRule(0.5, 9, 0.0)),
        "a",
        "b",
    )
    assert (timed_out.num_rounds, timed_out.stopped) == (1, "the time limit was reached")


def test_configurations_that_share_a_server_use_different_tenants(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = FakeServers()
    tokens = set()

    def change(name: str, url: str, token: str, settings: dict[str, Any]) -> None:
        tokens.add(token)
        fakes.journal.append(f"change to {name}: {settings['max_rolling_batch_size']}")

    monkeypatch.setattr(run_module, "change_settings", change)
    sizes = {"a": "8", "b": "16"}
    configs = [make_configuration(name, max_rolling_batch_size=size) for name, size in sizes.items()]
    configs.insert(1, make_configuration("other", engine="Python"))
    comparison, _ = run_configurations(fakes, model, tmp_path, Plan((SHORT,), 2, seed=0), configs)
    assert fakes.journal == [
        *("start b", "change to a: 8", "change to b: 16", "stop b"),
        *("start other", "stop other"),
        *("start b", "change to b: 16", "change to a: 8", "stop b"),
    ]
    assert [stay.configurations for stay in comparison.stays] == [("a", "b"), ("other",), ("b", "a")]
    assert [stay.rounds for stay in comparison.stays] == [(1,), (1, 2), (2,)]
    started = [variables.get("LMI_ADMIN_TOKEN") for variables in fakes.variables]
    assert started == [*tokens, None, *tokens]
    tenants = {one.headers["X-Tenant-Id"] for life in fakes.lives["b"] for one in life.seen}
    assert tenants == {"compare-0", "compare-2"}


def test_running_servers_are_measured_but_not_stopped(model: Path, tmp_path: Path) -> None:
    server = FakeServer(make_configuration("running"), Behaviour(), [])
    configs = [
        dataclasses.replace(make_configuration(name), url=server.url, path=None, model_folder=None)
        for name in ("a", "b")
    ]
    tokenizers = dict.fromkeys(("a", "b"), model)
    start = server_starter({})
    plan = Plan((SHORT,), 1, seed=0)
    comparison = ComparisonRunner(
        tuple(configs), plan, tokenizers, start, tmp_path, LogLines(io.StringIO())
    ).run()
    assert [result.figures.num_errors for result in comparison.rounds] == [0, 0]
    assert {(stay.start_up_seconds, stay.peak_memory_bytes) for stay in comparison.stays} == {(None, None)}
    same = equality(comparison, "b", "a", "short")
    assert same is not None
    assert same.num_identical == 3
    assert not server.over.is_set()
    server.kill()


def test_only_rolling_servers_write_step_traces(model: Path, tmp_path: Path) -> None:
    fakes = FakeServers()
    traces = tmp_path / "traces"
    traces.mkdir()

    def write_a_trace(server: FakeServer, number: int) -> None:
        Path(fakes.variables[-1]["OPTION_STEP_TRACE"]).touch()

    fakes.behaviours["a/1"] = Behaviour(before_answer=write_a_trace)
    configs = [make_configuration("a/1", step_trace="(none)"), make_configuration("b", engine="Python")]
    comparison, _ = run_configurations(
        fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), configs, trace_folder=traces
    )
    assert [one.step_trace for one in comparison.rounds] == [str(traces / "01-a_1.jsonl"), ""]
    assert "OPTION_STEP_TRACE" not in fakes.variables[1]


def test_a_trace_file_that_all_servers_write_is_kept_per_server(model: Path, tmp_path: Path) -> None:
    own, fakes = tmp_path / "own.jsonl", FakeServers()

    def write_own_trace(server: FakeServer, number: int) -> None:
        own.write_text(fakes.journal[-1])

    fakes.behaviours = dict.fromkeys("ab", Behaviour(before_answer=write_own_trace))
    configs = [make_configuration(name, step_trace=str(own)) for name in ("a", "b")]
    plan = Plan((SHORT,), 1, seed=0)
    (tmp_path / "01-a.jsonl").write_text("trace of an earlier comparison")
    comparison, _ = run_configurations(fakes, model, tmp_path, plan, configs, trace_folder=tmp_path)
    assert [Path(one.step_trace).read_text() for one in comparison.rounds] == ["start a", "start b"]


def test_the_step_trace_is_that_of_the_first_copy(model: Path, tmp_path: Path) -> None:
    fakes = FakeServers()

    def write_traces(server: FakeServer, number: int) -> None:
        trace = Path(fakes.variables[-1]["OPTION_STEP_TRACE"])
        for copy in (1, 2):
            trace.with_stem(f"{trace.stem}-copy{copy}").write_text(str(copy))

    fakes.behaviours["a"] = Behaviour(before_answer=write_traces)
    configs = [make_configuration("a", data_parallel_size="2"), make_configuration("b", engine="Python")]
    comparison, _ = run_configurations(
        fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), configs, trace_folder=tmp_path
    )
    assert Path(comparison.rounds[0].step_trace).read_text() == "1"


def test_kv_use_is_sampled_during_the_round(model: Path, tmp_path: Path) -> None:
    def wait_for_a_sample(server: FakeServer, number: int) -> None:
        if number == 2:  # the first request of the round, after two of the warm-up
            server.looked.clear()
            assert server.looked.wait(200.0)

    waiting = Behaviour(before_answer=wait_for_a_sample)
    fakes = FakeServers({"a": waiting, "b": dataclasses.replace(waiting, kv=False)})
    comparison, _ = run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    kv = comparison.of("a", "short")[0].kv
    assert kv is not None
    assert (kv.slots_total, kv.mean_allocated, kv.waste) == (160.0, 32.0, 0.5)
    assert comparison.of("b", "short")[0].kv is None


def test_tokens_of_configurations_are_compared_by_request(model: Path, tmp_path: Path) -> None:
    def off_by_one_at_the_end(prompt: str, position: int) -> int:
        return plain_token(prompt, position) + (position == 3)

    fakes = FakeServers({"b": Behaviour(token=off_by_one_at_the_end)})
    comparison, _ = run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b", "c")
    same = equality(comparison, "c", "a", "short")
    assert same is not None
    assert (same.num_requests, same.num_identical) == (3, 3)
    other = equality(comparison, "b", "a", "short")
    assert other is not None
    assert other.num_identical == 0
    assert other.earliest is not None
    assert other.earliest.position == 3


def test_failed_requests_are_counted_and_have_no_tokens(model: Path, tmp_path: Path) -> None:
    fakes = FakeServers({"b": Behaviour(refuses=lambda body: body["parameters"]["max_new_tokens"] == 4)})
    comparison, _ = run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    (failed,) = comparison.of("b", "short")
    assert failed.figures.num_errors == 3
    assert "no such thing" in failed.figures.errors[0].text
    assert failed.token_ids == ((), (), ())
    assert comparison.num_failed == 3


def test_responses_with_a_wrong_prompt_length_count_as_failed(model: Path, tmp_path: Path) -> None:
    comparison, _ = run(
        FakeServers({"b": Behaviour(input_length=99)}), model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b"
    )
    (failed,) = comparison.of("b", "short")
    assert failed.figures.num_errors == 3
    assert failed.token_ids == ((), (), ())


def test_a_server_without_metrics_is_killed_and_ends_the_comparison(model: Path, tmp_path: Path) -> None:
    fakes = FakeServers({"a": Behaviour(metrics_text="<html>")})
    with pytest.raises(NoMetrics):
        run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    assert fakes.journal == ["start a", "kill a"]


def test_a_server_that_exits_with_an_error_ends_the_comparison(model: Path, tmp_path: Path) -> None:
    fakes = FakeServers({"a": Behaviour(exit_code=1)})
    with pytest.raises(ServerFailed, match="a: the server exited with code 1"):
        run(fakes, model, tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    assert fakes.journal == ["start a", "stop a"]


def test_no_server_starts_if_the_workload_cannot_be_built(tmp_path: Path) -> None:
    fakes = FakeServers()
    with pytest.raises(BenchError):
        run(fakes, tmp_path / "nothing", tmp_path, Plan((SHORT,), 1, seed=0), "a", "b")
    assert fakes.journal == []


def test_sigterm_kills_the_server_and_ends_the_comparison_immediately(model: Path, tmp_path: Path) -> None:
    stopped_in_time: list[bool] = []

    def send_sigterm(server: FakeServer, number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        stopped_in_time.append(server.over.wait(200.0))

    fakes = FakeServers({"a": Behaviour(before_answer=send_sigterm)})
    with StopSignals(), pytest.raises(StopRequested):
        run(fakes, model, tmp_path, Plan((SHORT,), 3, seed=0), "a", "b")
    assert fakes.journal == ["start a", "kill a"]
    assert all(stopped_in_time)
    wait_until(lambda: not any(thread.name.startswith("load") for thread in threading.enumerate()))
