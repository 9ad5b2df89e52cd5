"""The command line of `lmi tune`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from container.cli import main
from container.measure.compare.configurations import NamedPath
from container.measure.compare.plan import Plan
from container.measure.compare.results import Comparison, End
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import ServerFailed
from container.measure.simulate.simulation import simulate
from container.measure.tune import tune_command
from container.models.files import ModelNotAvailable
from lmi_server.properties import loader
from tests.container.measure.compare.made_up import MACHINE, compare_speeds, write_model, write_properties
from tests.container.measure.simulate.made_up import Times, rolling_server, scenario

SMALL = ("--users", "8", "--requests", "16", "--input-tokens", "16", "--output-tokens", "8")
SEARCH = (
    "--search=option.max_rolling_batch_size=1,8",
    "--search=option.block_size=16",
    "--search=option.paged_attention=true",
    "--search=option.batch_scheduler_policy=max_utilization",
    "--search=option.enable_chunked_prefill=true",
    "--search=option.max_rolling_batch_prefill_tokens=64",
)
FASTER = "max_rolling_batch_size=8"


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A folder with serving.properties (two concurrent sequences) and its model."""
    lines = ("# mine", "engine=MPI", "option.max_rolling_batch_size=2")
    more = ("option.max_rolling_batch_prefill_tokens=64", "option.kv_cache_gb=0.1")
    return write_properties(write_model(tmp_path / "file"), *lines, *more)


@dataclass
class FakeRuns:
    """Replaces `RealRuns`. Figures are made up from a speed per configuration name."""

    speeds: Mapping[str, Sequence[float]]
    run_files: list[str] = field(default_factory=list)
    num_rounds: int = 0
    plan: Plan | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()
    """Folder of the logs."""

    def __call__(self, plan: Plan, *others: Any) -> FakeRuns:
        self.plan, self.environ, self.folder = plan, others[0], others[-2]
        return self

    def run(self, files: Sequence[NamedPath], num_rounds: int, *, traced: bool) -> Comparison:
        assert self.plan is not None
        self.run_files += [one.name for one in files]
        self.num_rounds += num_rounds * len(files)
        speeds = {name: self.speeds.get(name, [1.0, 1.1]) for name in self.run_files}
        return replace(compare_speeds(speeds, self.plan.scenarios[0]), plan=self.plan)


def invoke(*arguments: object, goal: str = "max tokens/s") -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, arguments), "--goal", goal, *SEARCH, *SMALL])


Tune = Callable[..., Result]
"""Runs `lmi tune` on the configuration with fake runs and more options. All steps take the same time."""


@pytest.fixture
def tune_with(configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    monkeypatch.setattr(tune_command, "detect", lambda environ: MACHINE)
    trace = tmp_path / "trace.jsonl"
    simulate(rolling_server(configuration), Times(0.25), scenario(20, 40, 20), step_trace=str(trace))

    def run(runs: FakeRuns, *options: object, goal: str = "max tokens/s") -> Result:
        monkeypatch.setattr(tune_command, "RealRuns", runs)
        return invoke(configuration, "--calibrate", trace, *options, goal=goal)

    return run


def test_the_best_configuration_is_verified_and_written_with_its_measurements(
    configuration: Path, tune_with: Tune, tmp_path: Path
) -> None:
    fake = FakeRuns({"file": [100, 101, 99], FASTER: [150, 153, 148]})
    files = ("--json", tmp_path / "all.json", "--report", tmp_path / "page.html")
    result = tune_with(fake, *files, "--verify", "2")
    assert result.exit_code == 0, result.output
    # The unchanged file, then the best predictions.
    assert fake.run_files == ["file", FASTER, "max_rolling_batch_size=1"]
    assert f"{FASTER} is the best of the 3 configurations that were run" in result.stdout
    assert f"{FASTER} is faster than file by" in result.stdout
    assert "The simulation was wrong about file (unchanged): tokens/s" in result.stdout
    output = configuration / "serving.properties.tuned"
    text = output.read_text()
    assert "# mine\nengine=MPI\n# was 2; tokens/s +" in text
    assert "over the original file (95 % interval, 3 rounds)\n" in text
    assert loader.load(output, {}).config.options.max_rolling_batch_size == 8
    data = json.loads((tmp_path / "all.json").read_text())
    assert (data["best"], data["goal_is_met"], data["num_rounds"]) == (FASTER, True, 15)
    (best,) = [one for one in data["configurations"] if one["name"] == FASTER]
    assert best["changes"] == {"option.max_rolling_batch_size": "8"}
    assert best["measured"]["tokens/s"] == 150
    assert best["ratio_to_file"]["low"] > 1
    assert best["in_pareto_set"] is True
    assert best["predicted"]["tokens/s"] == pytest.approx(8 / 0.25, rel=0.5)
    assert data["verification"]["rounds"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Tuning" in page
    assert f"{FASTER} is the best of the 3 configurations that were run" in page


def test_an_uncertain_gain_is_marked_as_uncertain(configuration: Path, tune_with: Tune) -> None:
    result = tune_with(FakeRuns({"file": [100, 100], FASTER: [100, 200]}), "--verify", "1")
    assert f"{FASTER} is the best" in result.stdout
    assert "too few rounds: 2 rounds vary too much for a verdict" in result.stdout
    text = (configuration / "serving.properties.tuned").read_text()
    assert "# was 2; tokens/s +41.4 % over the original file (2 rounds: too few to be certain)" in text


def test_a_file_that_is_already_the_best_is_not_changed(configuration: Path, tune_with: Tune) -> None:
    result = tune_with(FakeRuns({"file": [100, 101]}))
    assert result.exit_code == 0
    assert "The file needs no change: it is the best" in result.stdout
    assert f"predicted another best configuration: {FASTER}" in result.stdout
    assert not (configuration / "serving.properties.tuned").exists()


def test_the_closest_configuration_is_named_when_no_configuration_meets_the_goal(
    configuration: Path, tune_with: Tune
) -> None:
    # Latencies are 100 over the speed: 1 s and 0.5 s.
    fake = FakeRuns({"file": [100, 100], FASTER: [200, 200]})
    result = tune_with(fake, goal="p95 latency < 400ms, max tokens/s")
    assert result.exit_code == 1
    closest = f"meets the goal. The closest is {FASTER}, which misses p95 latency < 400 ms by 25.0 %"
    assert closest in result.stdout
    assert not (configuration / "serving.properties.tuned").exists()


def test_a_file_that_cannot_be_served_here_is_refused_before_any_run(
    configuration: Path, tune_with: Tune
) -> None:
    fake = FakeRuns({})
    write_properties(configuration, "engine=MPI", "option.tensor_parallel_degree=64")
    result = tune_with(fake)
    assert (result.exit_code, "option.tensor_parallel_degree" in result.stderr) == (1, True), result.output
    assert fake.run_files == []


def test_all_figures_are_predicted_for_another_machine(configuration: Path, tmp_path: Path) -> None:
    output = tmp_path / "tuned.properties"
    arguments = (configuration, "--model", configuration, "--device", "A10G", "--output", output)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "All figures are predicted." in result.stdout
    assert "a roofline of 1 x A10G" in result.stdout
    assert "(predicted)" in output.read_text()
    assert "# machine: 1 x A10G" in output.read_text()
    # The output is in another folder, but still refers to the model in the file's folder.
    assert loader.load(output, {}).config.source.local_path == configuration
    again = invoke(*arguments)
    assert (again.exit_code, "use --force to overwrite it" in again.stderr) == (2, True)
    assert invoke(*arguments, "--force").exit_code == 0
    # The other file is written when one cannot be written.
    output.unlink()
    output.symlink_to(tmp_path / "gone" / "tuned.properties")
    failed = invoke(*arguments, "--json", tmp_path / "all.json")
    assert failed.exit_code == 1
    assert f"Error: --output: cannot write {output}: No such file or directory" in failed.stderr
    assert json.loads((tmp_path / "all.json").read_text())["configurations"]
    output.unlink()
    failed = invoke(*arguments, "--json", "/dev/full")
    assert (failed.exit_code, output.exists()) == (1, True)
    assert "Error: --json: cannot write /dev/full: No space left on device" in failed.stderr


def test_configurations_that_cannot_be_served_are_skipped_with_a_reason(configuration: Path) -> None:
    options = ("--search", "option.tensor_parallel_degree=1,64", "--search", "engine=Python")
    result = invoke(configuration, "--model", configuration, "--device", "A10G", *options)
    assert result.exit_code == 0, result.output
    assert "was left out: " in result.stdout
    assert "needs 64 GPUs" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--goal", "max speed"), "--goal: unknown metric (got speed)"),
        (("--goal", "max goodput"), "--goal: goodput requires --slo"),
        (("--device", "A10G", "--verify", "2"), "--verify: not supported with --device"),
        (("--device", "A10G", "--report", "page.html"), "--report: requires real rounds"),
        (("--verify", "0", "--report", "page.html"), "--report: requires real rounds"),
        (("--device", "A10X"), "device: unknown name (got A10X)"),
        (("--search", "option.block_sise=1"), "--search: unknown key (got option.block_sise)"),
        (("--output", "none/x"), "there is no folder"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], message: str, configuration: Path) -> None:
    result = CliRunner().invoke(main, ["tune", str(configuration), "--goal", "max tokens/s", *options])
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_wrong_file_is_refused_with_the_nearest_option(configuration: Path, tune_with: Tune) -> None:
    write_properties(configuration, "engine=MPI", "option.max_rolling_batch_sise=2")
    wrong = tune_with(FakeRuns({}))
    assert (wrong.exit_code, "did you mean option.max_rolling_batch_size" in wrong.stderr) == (1, True)


@dataclass
class FailingRuns(FakeRuns):
    """Fails with an error. `{log}` in its text stands for the log of a server."""

    error: Exception = field(default_factory=Exception)
    has_log: bool = False

    def run(self, files: Sequence[NamedPath], num_rounds: int, *, traced: bool) -> Comparison:
        log = self.folder / "rounds" / "01-file.log"
        log.parent.mkdir()
        if self.has_log:
            log.write_text("ready")
        raise type(self.error)(str(self.error).format(log=log))


@pytest.mark.parametrize(
    ("error", "has_log", "message"),
    [
        (
            NoMetrics("cannot read /metrics"),
            True,
            "error: cannot read /metrics; the servers' logs are in {logs}\n",
        ),
        (NoMetrics("cannot read /metrics"), False, "error: cannot read /metrics\n"),
        (ServerFailed("file: exited\nIts log, {log}"), True, "error: file: exited\nIts log, {log}\n"),
        (ModelNotAvailable("no model a/b"), False, "Error: no model a/b\n"),
    ],
    ids=["no metrics", "no metrics of a running server", "server failed", "no model"],
)
def test_the_logs_of_the_servers_are_named_if_there_are_any(
    error: Exception,
    has_log: bool,
    message: str,
    configuration: Path,
    tune_with: Tune,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fake = FailingRuns({}, error=error, has_log=has_log)
    failed = tune_with(fake)
    assert failed.exit_code == 1
    predicted = f"so all figures are predicted: {str(error).splitlines()[0]}"
    assert (predicted in failed.stdout) != isinstance(error, ModelNotAvailable)
    assert not (configuration / "serving.properties.tuned").exists()
    log = fake.folder / "rounds" / "01-file.log"
    assert failed.stderr.endswith(message.format(logs=fake.folder, log=log))
    assert fake.folder.exists() == has_log


@dataclass
class EndedRuns(FakeRuns):
    """Ends because a server fails after complete rounds."""

    def run(self, files: Sequence[NamedPath], num_rounds: int, *, traced: bool) -> Comparison:
        (self.folder / "01-file.log").write_text("ready")
        found = super().run(files, num_rounds, traced=traced)
        return replace(found, end=End.SERVER_FAILED, stopped="file: exited\nIts log:\n  full")


def test_the_complete_rounds_are_reported_when_a_server_fails(
    configuration: Path, tune_with: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fake, results = EndedRuns({"file": [100, 101], FASTER: [150, 151]}), tmp_path / "all.json"
    failed = tune_with(fake, "--json", results)
    assert failed.exit_code == 1
    assert f"{FASTER} is the best of the 3 configurations that were run" in failed.stdout
    assert "- A server failed, so no further round counts: file: exited\n" in failed.stdout
    assert failed.stderr.endswith(
        f"error: file: exited\nIts log:\n  full; the servers' logs are in {fake.folder}\n"
    )
    assert json.loads(results.read_text())["verification"]["rounds"]
    assert not (configuration / "serving.properties.tuned").exists()


def test_a_server_that_fails_before_step_times_are_known_ends_the_command(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **others: object) -> None:
        raise ServerFailed("file: exited")

    monkeypatch.setattr(tune_command, "detect", lambda environ: MACHINE)
    monkeypatch.setattr(tune_command, "learn_times", fail)
    failed = invoke(configuration)
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr.endswith("Error: file: exited\n")


def test_servers_write_their_own_step_traces_which_are_kept_until_the_report_is_written(
    tune_with: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTION_STEP_TRACE", str(tmp_path / "steps.jsonl"))
    fake, seen = FakeRuns({}), []
    monkeypatch.setattr(tune_command, "write_report", lambda *arguments: seen.append(fake.folder.exists()))
    assert tune_with(fake, "--report", tmp_path / "page.html").exit_code == 0
    assert (seen, fake.folder.exists()) == ([True], False)
    assert "OPTION_STEP_TRACE" not in fake.environ
