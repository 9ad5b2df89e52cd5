"""Real rounds on scripted servers, and the step times that are learnt from them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.explain.target import this_machine
from container.machine import Machine
from container.measure.bench.arrivals import Users
from container.measure.bench.workload import BenchError
from container.measure.compare import run as run_module
from container.measure.compare.configurations import Configuration, NamedPath
from container.measure.compare.plan import Plan
from container.measure.compare.results import Comparison
from container.measure.compare.server_process import ReadyServer
from container.measure.simulate.server import read_server
from container.measure.simulate.simulation import simulate
from container.measure.tune import tune_command
from container.measure.tune.real_runs import RealRuns, learn_times
from container.measure.tune.space import MAX_PROMPT_TOKENS, MAX_SEQUENCES, SearchSpace
from container.measure.tune.tune_command import tune
from container.progress import LogLines
from tests.container.measure.compare.fake_server import FakeServers
from tests.container.measure.compare.made_up import make_scenario
from tests.container.measure.compare.test_configurations import CONFIG, MACHINE
from tests.container.measure.simulate.made_up import Times, rolling_server, scenario
from tests.lmi_server.fakes import build_model_folder

SHORT = make_scenario("short", 8, 4, 3, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration with a model beside its file."""
    place = build_model_folder(tmp_path / "file")
    (place / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 400}))
    (place / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return place


def make_runs(start: object, tmp_path: Path) -> RealRuns:
    logs = tmp_path / "logs"
    logs.mkdir()
    return RealRuns(Plan((SHORT,), 9, 0), {}, MACHINE, None, start, logs, LogLines(io.StringIO()))  # type: ignore[arg-type]


def made_in(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    return made


def test_step_times_are_fitted_to_the_steps_of_the_smallest_and_largest_batches(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[Mapping[str, object]] = []
    monkeypatch.setattr(
        run_module, "change_settings", lambda name, url, token, settings: changed.append(settings)
    )
    fakes, steps = FakeServers(), 20

    def start(config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        trace = variables["OPTION_STEP_TRACE"]
        simulate(rolling_server(folder), Times(0.25), scenario(steps, 40, 20), step_trace=trace)
        return fakes(config, log, variables)

    (folder / "serving.properties").write_text("engine=MPI\noption.kv_cache_gb=1\n")
    axes = {MAX_SEQUENCES: ("8", "2", "32"), MAX_PROMPT_TOKENS: ("256", "64", "1024")}
    space = SearchSpace(NamedPath("file", folder), "MPI", {}, axes)
    runs = make_runs(start, tmp_path)
    times = learn_times(space, runs, made_in(tmp_path))(read_server(folder, None, this_machine(MACHINE)))
    assert times.seconds([64] * 8, [1] * 8, 8).device == pytest.approx(0.25)
    # Both were run on one server, whose settings were changed.
    assert fakes.journal == ["start file, largest batches", "stop file, largest batches"]
    assert [one["max_rolling_batch_size"] for one in changed] == [2, 32]
    assert [one["max_rolling_batch_prefill_tokens"] for one in changed] == [64, 1024]
    assert runs.num_rounds == 2


def test_too_small_a_load_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "change_settings", lambda *arguments: None)

    def start(config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        simulate(
            rolling_server(folder), Times(), scenario(1, 8, 4), step_trace=variables["OPTION_STEP_TRACE"]
        )
        return FakeServers()(config, log, variables)

    (folder / "serving.properties").write_text("engine=MPI\noption.kv_cache_gb=1\n")
    axes = {MAX_SEQUENCES: ("8", "2"), MAX_PROMPT_TOKENS: ("256",)}
    space = SearchSpace(NamedPath("file", folder), "MPI", {}, axes)
    with pytest.raises(BenchError, match="--requests: too few to fit step times"):
        learn_times(space, make_runs(start, tmp_path), made_in(tmp_path))


@pytest.mark.parametrize("tpot", [0.003, 0.0])
def test_dynamic_batching_is_scaled_to_the_measured_time_per_token(
    tpot: float, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or to that of whole answers, where all tokens of an answer came at once."""
    real_run = RealRuns.run

    def run(self: RealRuns, files: Sequence[NamedPath], num_rounds: int) -> Comparison:
        """As if each token had taken so long: far less than by any roofline."""
        made = real_run(self, files, num_rounds)
        (measured,) = made.rounds
        figures = replace(measured.figures, tpot=replace(measured.figures.tpot, mean=tpot))
        return replace(made, rounds=(replace(measured, figures=figures),))

    monkeypatch.setattr(RealRuns, "run", run)
    (folder / "serving.properties").write_text("engine=Python\nbatch_size=2\n")
    space = SearchSpace(NamedPath("file", folder), "Python", {}, {"batch_size": ("2", "4")})
    runs = make_runs(FakeServers(), tmp_path)
    target = this_machine(Machine(2, 8 << 30))
    server = read_server(folder, None, target)
    times = learn_times(space, runs, made_in(tmp_path))(server)
    assert "all times" in times.describe()
    assert "the measured time per token of file" in times.describe()
    (scenario,) = runs.plan.scenarios
    assert isinstance(scenario.arrivals, Users)
    found = simulate(server, times, scenario, seed=runs.plan.round_seed(1)).figures
    assert found.tpot.mean == pytest.approx(tpot) if tpot else found.tpot.mean > 0
    assert runs.num_rounds == 1


def test_a_file_is_tuned_from_its_first_run_to_the_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = FakeServers()
    monkeypatch.setattr(tune_command, "detect", lambda environ: MACHINE)
    monkeypatch.setattr(tune_command, "server_starter", lambda environ: fakes)
    (folder / "serving.properties").write_text("engine=Python\nbatch_size=2\n")
    search = ("--search", "batch_size=8", "--search", "max_batch_delay=0,100")
    load = ("--users", "4", "--requests", "8", "--input-tokens", "8", "--output-tokens", "4", "--rounds", "2")
    options = ("--goal", "errors < 50%, max tokens/s", "--verify", "1", "--json", str(tmp_path / "all.json"))
    done = CliRunner().invoke(tune, [str(folder), *search, *load, *options])
    assert done.exit_code == 0, done.output
    # Once for its step times, then in turn with the one that the simulation puts first.
    starts = [line.removeprefix("start ") for line in fakes.journal if line.startswith("start ")]
    data = json.loads((tmp_path / "all.json").read_text())
    names = [one["name"] for one in data["verification"]["configurations"]]
    assert names[0] == "file"
    assert "batch_size=8" in names[1]
    assert starts == ["file", names[0], names[1], names[0]]
    assert (data["num_points"], data["num_rounds"]) == (4, 5)
    measured = [one["measured"] for one in data["configurations"] if one["name"] in names]
    assert all(one["tokens/s"] > 0 and one["errors"] == 0 for one in measured)
    # The scripted servers are equally fast, so either may be the best.
    assert (folder / "serving.properties.tuned").exists() == (data["best"] != "file")
