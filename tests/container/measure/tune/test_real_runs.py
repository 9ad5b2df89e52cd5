"""Real rounds on scripted servers, and step times fitted to them."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.explain.target import this_machine
from container.measure.bench.arrivals import Users
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import BenchError
from container.measure.compare import run as run_module
from container.measure.compare.configurations import Configuration, NamedPath
from container.measure.compare.live import SharedServer
from container.measure.compare.plan import Plan
from container.measure.compare.results import Comparison, End
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.server_process import ReadyServer, ServerFailed
from container.measure.simulate.server import read_server
from container.measure.simulate.simulation import simulate
from container.measure.tune import tune_command
from container.measure.tune.real_runs import RealRuns, TimesOf, learn_times
from container.measure.tune.space import MAX_PROMPT_TOKENS, MAX_SEQUENCES, SearchSpace
from container.measure.tune.tune_command import tune
from container.progress import LogLines
from container.run.stop_signals import StopRequested
from tests.container.explain.questions import make_model
from tests.container.measure.compare.fake_server import Behaviour, FakeServers
from tests.container.measure.compare.made_up import (
    MACHINE,
    SMALL_SHAPE,
    make_scenario,
    write_properties,
)
from tests.container.measure.simulate.made_up import Times, rolling_server, scenario
from tests.lmi_server.fakes import build_model_folder

SHORT = make_scenario("short", 8, 4, 3, 2)
REFUSING = Behaviour(refuses=lambda body: True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model. Tests add serving.properties."""
    return make_model(build_model_folder(tmp_path / "file"), SMALL_SHAPE, vocab_size=400)


def rolling_space(folder: Path) -> SearchSpace:
    write_properties(folder, "engine=MPI", "option.kv_cache_gb=1")
    axes: dict[str, tuple[str, ...]] = {
        MAX_SEQUENCES: ("8", "2", "32"),
        MAX_PROMPT_TOKENS: ("256", "64", "1024"),
    }
    return SearchSpace(NamedPath("file", folder), "MPI", {}, axes)


def make_runs(start: object, tmp_path: Path) -> RealRuns:
    logs = tmp_path / "logs"
    logs.mkdir(parents=True)
    return RealRuns(Plan((SHORT,), 9, 0), {}, MACHINE, None, start, logs, LogLines(io.StringIO()))  # type: ignore[arg-type]


def no_skip(name: str, error: Exception) -> None:
    raise AssertionError(f"{name} was skipped: {error}")


class TracedServers(FakeServers):
    """Fake servers that write a step trace of a simulated load."""

    def __init__(self, folder: Path, load: Scenario) -> None:
        super().__init__()
        self._folder, self._load = folder, load

    def __call__(self, config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        trace = variables["OPTION_STEP_TRACE"]
        simulate(rolling_server(self._folder), Times(0.25), self._load, step_trace=trace)
        return super().__call__(config, log, variables)


def test_step_times_are_fitted_to_the_smallest_and_largest_batches(
    folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[Mapping[str, object]] = []
    monkeypatch.setattr(
        run_module, "change_settings", lambda name, url, token, settings: changed.append(settings)
    )
    fakes = TracedServers(folder, scenario(20, 40, 20))
    runs = make_runs(fakes, tmp_path)
    times = learn_times(rolling_space(folder), runs, copies, no_skip)(
        read_server(folder, None, this_machine(MACHINE))
    )
    assert times.seconds([64] * 8, [1] * 8, 8).device == pytest.approx(0.25)
    # One server ran both: its settings were changed in between.
    assert fakes.journal == ["start file, largest batches", "stop file, largest batches"]
    assert [one["max_rolling_batch_size"] for one in changed] == [2, 32]
    assert [one["max_rolling_batch_prefill_tokens"] for one in changed] == [64, 1024]
    assert runs.num_rounds == 2


def test_step_times_are_fitted_to_the_traces_of_both_servers_if_none_can_be_shared(
    folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run_module, "shared_servers", lambda configs: [SharedServer(one, (one,)) for one in configs]
    )
    runs = make_runs(TracedServers(folder, scenario(20, 40, 20)), tmp_path)
    times = learn_times(rolling_space(folder), runs, copies, no_skip)(
        read_server(folder, None, this_machine(MACHINE))
    )
    assert "01-file_smallest_batches.jsonl, 02-file_largest_batches.jsonl" in times.describe()


def test_the_file_takes_the_place_of_batches_that_are_too_large_to_start(
    folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[object] = []
    monkeypatch.setattr(
        run_module,
        "change_settings",
        lambda name, url, token, settings: changed.append(settings["max_rolling_batch_prefill_tokens"]),
    )
    skipped: list[tuple[str, str]] = []
    failing = ["file, largest batches"]
    fakes = TracedServers(folder, scenario(20, 40, 20))

    def start(config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        if config.name in failing:
            raise ServerFailed(f"{config.name}: option.kv_cache_gb=1 does not fit")
        return fakes(config, log, variables)

    def learn(folder_name: str) -> TimesOf:
        space, runs = rolling_space(folder), make_runs(start, tmp_path / folder_name)
        return learn_times(space, runs, copies, lambda name, error: skipped.append((name, str(error))))

    times = learn("first")(read_server(folder, None, this_machine(MACHINE)))
    assert times.seconds([64] * 8, [1] * 8, 8).device == pytest.approx(0.25)
    assert skipped == [(failing[0], f"{failing[0]}: option.kv_cache_gb=1 does not fit")]
    assert fakes.journal == ["start file, own batches", "stop file, own batches"]
    assert changed == [64, 256]
    failing.append("file, own batches")
    with pytest.raises(ServerFailed, match=r"^file, own batches: option\.kv_cache_gb=1 does not fit$"):
        learn("second")
    assert len(skipped) == 1


def test_a_load_with_too_few_requests_is_refused(
    folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "change_settings", lambda *arguments: None)
    runs = make_runs(TracedServers(folder, scenario(1, 8, 4)), tmp_path)
    message = (
        r"^--requests: too few to fit step times \(got \d+\); allowed: at least 50 usable steps; raise --requests or"
        r" --output-tokens$"
    )
    with pytest.raises(BenchError, match=message):
        learn_times(rolling_space(folder), runs, copies, no_skip)


def test_learning_fails_with_the_error_of_the_requests(
    folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "change_settings", lambda *arguments: None)
    fakes: FakeServers = TracedServers(folder, scenario(20, 40, 20))
    fakes.behaviours["file, largest batches"] = REFUSING
    rolling = rolling_space(folder)
    with pytest.raises(ServerFailed, match=r"^file, smallest batches: 3 of 3 requests failed: HTTP 424"):
        learn_times(rolling, make_runs(fakes, tmp_path / "rolling"), copies, no_skip)
    write_properties(folder, "engine=Python", "batch_size=2")
    space = SearchSpace(NamedPath("file", folder), "Python", {}, {"batch_size": ("2", "4")})
    fakes = FakeServers({"file": REFUSING})
    with pytest.raises(ServerFailed, match=r"^file: 3 of 3 requests failed: HTTP 424: no such thing$"):
        learn_times(space, make_runs(fakes, tmp_path / "dynamic"), copies, no_skip)


def test_too_few_steps_because_of_failed_requests_are_no_lack_of_requests(
    folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(run_module, "change_settings", lambda *arguments: None)
    fakes = TracedServers(folder, scenario(1, 8, 4))
    fakes.behaviours["file, largest batches"] = Behaviour(refuses=lambda body: next(numbers) == 2)
    # The first two requests warm the server up.
    with pytest.raises(ServerFailed, match=r"^file, smallest batches: 1 of 3 requests failed: HTTP 424"):
        learn_times(rolling_space(folder), make_runs(fakes, tmp_path), copies, no_skip)


def test_the_complete_rounds_are_kept_when_a_server_fails(folder: Path, copies: Path, tmp_path: Path) -> None:
    write_properties(folder, "engine=Python", "batch_size=2")
    file = NamedPath("file", folder)
    runs = make_runs(FakeServers({"file": Behaviour(exit_code=1)}), tmp_path)
    comparison = runs.run([file], 2)
    assert (comparison.end, comparison.num_rounds, runs.num_rounds) == (End.SERVER_FAILED, 2, 2)
    with pytest.raises(ServerFailed, match=r"^file: the server exited with code 1$"):
        learn_times(SearchSpace(file, "Python", {}, {"batch_size": ("2", "4")}), runs, copies, no_skip)


def test_a_stop_signal_discards_complete_rounds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_properties(folder, "engine=Python", "batch_size=2")
    real_run = ComparisonRunner.run
    monkeypatch.setattr(ComparisonRunner, "run", lambda self: replace(real_run(self), end=End.INTERRUPTED))
    with pytest.raises(StopRequested):
        make_runs(FakeServers(), tmp_path).run([NamedPath("file", folder)], 2)


@pytest.mark.parametrize("tpot", [0.003, 0.0])
def test_dynamic_batching_is_scaled_to_the_measured_time_per_token(
    tpot: float, folder: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TPOT of 0 means that all tokens arrive at once. Then the time of whole responses is used instead."""
    real_run = RealRuns.run

    def run(self: RealRuns, files: Sequence[NamedPath], num_rounds: int) -> Comparison:
        """Return rounds with the given TPOT, far below any roofline."""
        comparison = real_run(self, files, num_rounds)
        (measured,) = comparison.rounds
        figures = replace(measured.metrics, tpot=replace(measured.metrics.tpot, mean=tpot))
        return replace(comparison, rounds=(replace(measured, metrics=figures),))

    monkeypatch.setattr(RealRuns, "run", run)
    write_properties(folder, "engine=Python", "batch_size=2")
    space = SearchSpace(NamedPath("file", folder), "Python", {}, {"batch_size": ("2", "4")})
    runs = make_runs(FakeServers(), tmp_path)
    server = read_server(folder, None, this_machine(MACHINE))
    times = learn_times(space, runs, copies, no_skip)(server)
    assert "all times" in times.describe()
    assert "the measured time per token of file" in times.describe()
    (scenario,) = runs.plan.scenarios
    assert isinstance(scenario.arrivals, Users)
    figures = simulate(server, times, scenario, seed=runs.plan.round_seed(1)).metrics
    assert figures.tpot.mean == pytest.approx(tpot) if tpot else figures.tpot.mean > 0
    assert runs.num_rounds == 1


def test_a_file_is_tuned_end_to_end(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = FakeServers()
    monkeypatch.setattr(tune_command, "detect", lambda environ: MACHINE)
    monkeypatch.setattr(tune_command, "server_starter", lambda environ: fakes)
    write_properties(folder, "engine=Python", "batch_size=2")
    search = ("--search", "batch_size=8", "--search", "max_batch_delay=0,100")
    load = ("--users", "4", "--requests", "8", "--input-tokens", "8", "--output-tokens", "4", "--rounds", "2")
    options = ("--goal", "errors < 50%, max tokens/s", "--verify", "1", "--json", str(tmp_path / "all.json"))
    result = CliRunner().invoke(tune, [str(folder), *search, *load, *options])
    assert result.exit_code == 0, result.output
    # The file runs once to measure step times, then alternates with the best simulated configuration.
    starts = [line.removeprefix("start ") for line in fakes.journal if line.startswith("start ")]
    data = json.loads((tmp_path / "all.json").read_text())
    names = [entry["name"] for entry in data["verification"]["configurations"]]
    assert names[0] == "file"
    assert "batch_size=8" in names[1]
    assert starts == ["file", names[0], names[1], names[0]]
    assert (data["num_points"], data["num_rounds"]) == (4, 5)
    measured = [entry["measured"] for entry in data["configurations"] if entry["name"] in names]
    assert all(entry["tokens/s"] > 0 and entry["errors"] == 0 for entry in measured)
    # The scripted servers are equally fast, so either may be the best.
    assert (folder / "serving.properties.tuned").exists() == (data["best"] != "file")
