"""The command line of `lmi compare`: options, and errors before any server starts."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from container.cli import main
from container.measure.bench.arrivals import Users
from container.measure.bench.lengths import Fixed
from container.measure.bench.workload import BenchError, Workload
from container.measure.compare import compare_command
from container.measure.compare.compare_command import CompareOptions
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import StoppingRule
from container.measure.compare.results import Comparison, End
from container.measure.compare.scrape import NoMetrics
from container.measure.compare.server_process import ServerFailed, ServerProcess, StartServer
from container.measure.report.svg import SvgRenderer
from tests.container.measure.compare.made_up import compare_speeds, make_configuration


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATH: at least two configurations are required, or one with --set (got 0)"),
        (["one", "two", "--examples", "x"], "--examples: requires --aws-post"),
        (
            ["one", "two", "--set", "option.dtype=fp32,bf16"],
            "--set: requires exactly one file or folder (got one two)",
        ),
        (["http://x:1", "--set", "option.dtype=fp32"], "--set: requires exactly one file or folder"),
        (["one", "--set", "option.dtipe=fp32"], "unknown key (got option.dtipe); did you mean option.dtype?"),
        (["one", "--set", "option.dtype=fp32,fp32"], "allowed: option.dtype=1,2,4, each key once"),
        (["one", "--set", "option.dtype"], "each key once"),
        (
            ["one", "--set", "batch_size=1,2", "--set", "max_dynamic_batch_size=4,8"],
            "(got max_dynamic_batch_size=4,8); allowed: max_dynamic_batch_size=1,2,4, each key once",
        ),
        (["one", "--set", f"job_queue_size={','.join(map(str, range(1, 34)))}"], "allowed: at most 32"),
        (["one", "--attribute"], "--attribute: requires one dynamic and one rolling configuration (got 1)"),
        (["one", "http://"], "URL: not the address of a server"),
        (["one", "two", "--precision", "3"], "such as 3%"),
        (["one", "two", "--precision", "0%"], "above 0"),
        (["one", "two", "--time", "10"], "such as 10m"),
        (["one", "two", "--max-rounds", "3"], "--max-rounds: requires --precision or --time"),
        (
            ["one", "two", "--time", "10m", "--rounds", "5", "--max-rounds", "2"],
            "--max-rounds: less than --rounds (got 2); allowed: at least 5",
        ),
        (["--aws-post", "--attribute"], "--attribute: not supported with --aws-post"),
        (
            ["--aws-post", "one"],
            "PATH: not supported with --aws-post, which sets the configurations (got one)",
        ),
        (["--aws-post", "--input-tokens", "32"], "--input-tokens: not supported with --aws-post"),
        (["--aws-post", "--lengths", "fixed"], "--lengths: not supported with --aws-post"),
        (["one", "two", "--output", "nowhere/at/all.md"], "nowhere/at/all.md: there is no folder"),
        (["one", "two", "--report", "report.pdf"], "allowed: a name ending in .html"),
        (["one", "two", "--rounds", "0"], "--rounds"),
        (["one", "two", "--dialect", "latin"], "'lmi', 'openai'"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_a_configuration_that_cannot_be_served_is_reported_before_any_server_starts(tmp_path: Path) -> None:
    output = tmp_path / "report.md"
    options = ["--aws-post", "--examples", str(tmp_path), "--output", str(output)]
    result = CliRunner().invoke(main, ["compare", *options])
    assert result.exit_code == 1
    assert "smollm2-dynamic" in result.output
    assert "allowed: the folder properties_examples" in result.output
    assert not output.exists()


ReadOptions = Callable[..., CompareOptions]
"""Returns the parsed options, without running a comparison."""


@pytest.fixture
def read_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ReadOptions:
    seen: list[CompareOptions] = []
    monkeypatch.setattr(compare_command, "run_comparison", lambda options, *others: seen.append(options))

    def read(*arguments: str) -> CompareOptions:
        result = CliRunner().invoke(main, ["compare", *arguments, "--output", str(tmp_path / "report.md")])
        assert result.exit_code == 0, result.output
        return seen.pop()

    return read


def test_the_default_is_five_rounds_of_several_waves_with_spread_lengths(read_options: ReadOptions) -> None:
    plan = read_options("one", "two").plan
    assert plan.num_rounds >= 5
    (scenario,) = plan.scenarios
    assert isinstance(scenario.arrivals, Users)
    work = scenario.workload
    assert work.num_requests >= 3 * scenario.arrivals.num_users
    for lengths in (work.prompts, work.outputs):
        assert len(set(lengths.draw(work.num_requests, random.Random(0)))) > 20


def test_options_set_the_load_and_a_stopping_rule(read_options: ReadOptions) -> None:
    assert read_options("one", "two").plan.stopping is None
    load = ("--lengths", "fixed", "--output-tokens", "128", "--requests", "32")
    stopping = ("--precision", "2.5%", "--time", "10m", "--max-rounds", "20")
    plan = read_options("one", "two", *load, *stopping).plan
    (scenario,) = plan.scenarios
    assert (scenario.name, scenario.workload) == (
        "32 tokens in, 128 out",
        Workload(Fixed(32), Fixed(128), 32),
    )
    assert (plan.stopping, plan.num_rounds) == (StoppingRule(0.025, 20, 600.0), 5)
    with_more_rounds = read_options("one", "two", "--precision", "3 %", "--rounds", "60").plan
    assert with_more_rounds.stopping == StoppingRule(0.03, 60)
    with_fewer_rounds = read_options("one", "two", "--time", "10m", "--max-rounds", "2").plan
    assert (with_fewer_rounds.stopping, with_fewer_rounds.num_rounds) == (StoppingRule(None, 2, 600.0), 2)


def test_the_posts_scenarios_have_their_own_load(read_options: ReadOptions) -> None:
    first, second = read_options("--aws-post").plan.scenarios
    assert [first.name, second.name] == ["scenario 1: 32 in, 128 out", "scenario 2: 256 in, 32 out"]
    assert first.workload == Workload(Fixed(32), Fixed(128), 32)
    assert second.workload == Workload(Fixed(256), Fixed(32), 32)
    assert (first.arrivals, second.arrivals) == (Users(32), Users(32))


def test_started_servers_do_not_get_the_callers_admin_token_and_step_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environs: list[dict[str, str]] = []

    def start(config: Configuration, log: Path, environ: dict[str, str]) -> None:
        environs.append(environ)

    def run(options: CompareOptions, environ: dict[str, str], machine: object, start: StartServer) -> int:
        environs.append(environ)
        start(make_configuration("a"), tmp_path / "log", {"EXTRA": "1"})
        return 0

    monkeypatch.setenv("LMI_ADMIN_TOKEN", "of-another-server")
    monkeypatch.setenv("OPTION_STEP_TRACE", str(tmp_path / "steps.jsonl"))
    monkeypatch.setattr(ServerProcess, "start", start)
    monkeypatch.setattr(compare_command, "run_comparison", run)
    CliRunner().invoke(main, ["compare", "one", "two", "--output", str(tmp_path / "report.md")])
    of_files, environ = environs
    assert not {"LMI_ADMIN_TOKEN", "OPTION_STEP_TRACE"} & {*of_files, *environ}
    assert environ["PATH"]
    assert environ["EXTRA"] == "1"


def test_all_results_are_written_even_if_one_file_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = measure_made_up_speeds(monkeypatch)
    output, page, results = (tmp_path / name for name in ("report.md", "page.html", "results.json"))
    result = CliRunner().invoke(
        main, ["compare", "one", "two", "--output", str(output), "--report", str(page)]
    )
    assert result.exit_code == 0, result.output
    assert output.read_text(encoding="utf-8").startswith("# Comparison of a and b")
    assert "<h1>Comparison of a and b</h1>" in page.read_text(encoding="utf-8")
    assert [folder.exists() for folder in folders] == [False]  # the step traces are removed
    files = {"--json": results, "--output": output, "--report": page}
    for option, broken in files.items():
        for path in files.values():
            path.unlink(missing_ok=True)
        broken.symlink_to(tmp_path / "gone" / "file")
        arguments = [str(word) for pair in files.items() for word in pair]
        result = CliRunner().invoke(main, ["compare", "one", "two", *arguments])
        assert result.exit_code == 1
        assert "No such file or directory" in result.output.splitlines()[-1]
        assert [path.is_file() for path in files.values()] == [name != option for name in files]
    assert not any(folder.exists() for folder in folders)


def test_a_load_that_cannot_be_made_leaves_no_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure_made_up_speeds(monkeypatch)

    def run(runner: object) -> Comparison:
        raise BenchError("the tokenizer cannot be read")

    monkeypatch.setattr(compare_command.ComparisonRunner, "run", run)
    result = CliRunner().invoke(main, ["compare", "one", "two", "--output", str(tmp_path / "report.md")])
    assert result.exit_code == 1
    assert result.output.endswith("Error: the tokenizer cannot be read\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [NoMetrics, ServerFailed])
@pytest.mark.parametrize("has_log", [True, False], ids=["own server", "running server"])
def test_the_logs_are_named_if_a_server_was_started(
    error: type[Exception], has_log: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure_made_up_speeds(monkeypatch)

    def run(runner: object) -> Comparison:
        (folder,) = tmp_path.glob("lmi-compare-logs-*")
        if has_log:
            (folder / "01-one.log").write_text("ready")
        raise error("cannot read http://127.0.0.1:1/metrics")

    monkeypatch.setattr(compare_command.ComparisonRunner, "run", run)
    result = CliRunner().invoke(main, ["compare", "one", "two", "--output", str(tmp_path / "report.md")])
    assert result.exit_code == 1
    folders = list(tmp_path.glob("lmi-compare-logs-*"))
    named = f"; the servers' logs are in {folders[0]}" if has_log else ""
    assert result.output.endswith(f"Error: cannot read http://127.0.0.1:1/metrics{named}\n")
    assert len(folders) == has_log


@pytest.mark.parametrize(
    ("num_failed", "message"), [(1, "error: 1 request failed\n"), (2, "error: 2 requests failed\n")]
)
def test_failed_requests_of_running_servers_are_counted_without_logs(
    num_failed: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure_made_up_speeds(monkeypatch, num_failed)
    result = CliRunner().invoke(main, ["compare", "one", "two", "--output", str(tmp_path / "report.md")])
    assert result.exit_code == 1
    assert result.stderr.endswith(message)
    assert list(tmp_path.glob("lmi-compare-logs-*")) == []


def test_the_complete_rounds_are_reported_when_a_server_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failure = "b: the server exited with code 1\nEnd of its log, b.log:\n  out of memory"
    measure_made_up_speeds(monkeypatch, failure=failure, end=End.SERVER_FAILED)
    output = tmp_path / "report.md"
    result = CliRunner().invoke(main, ["compare", "one", "two", "--output", str(output)])
    assert result.exit_code == 1
    assert result.stderr.endswith(f"error: {failure}; the servers' logs are in {only_logs(tmp_path)}\n")
    sentence = "A server failed, so no further round counts: b: the server exited with code 1"
    assert f"- {sentence}\n" in result.stdout
    assert f"- {sentence}\n" in output.read_text(encoding="utf-8")


def test_the_complete_rounds_are_reported_after_a_stop_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure_made_up_speeds(monkeypatch, end=End.INTERRUPTED)
    output = tmp_path / "report.md"
    result = CliRunner().invoke(main, ["compare", "one", "two", "--output", str(output)])
    assert result.exit_code == 130
    assert "- A stop signal ended the comparison after 2 complete rounds.\n" in result.stdout
    assert output.read_text(encoding="utf-8").startswith("# Comparison of a and b")
    assert list(tmp_path.glob("lmi-compare-logs-*")) == []


def test_a_stop_signal_while_the_files_are_written_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure_made_up_speeds(monkeypatch, end=End.INTERRUPTED)
    written: list[Path] = []

    def write_page(document: object, path: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        written.append(path)

    monkeypatch.setattr(compare_command, "write_report", write_page)
    output, page = tmp_path / "report.md", tmp_path / "page.html"
    result = CliRunner().invoke(
        main, ["compare", "one", "two", "--output", str(output), "--report", str(page)]
    )
    assert (result.exit_code, written) == (130, [page])
    assert f"report: {output}\n" in result.stderr
    assert "no report was written" not in result.stderr


def only_logs(folder: Path) -> Path:
    (logs,) = folder.glob("lmi-compare-logs-*")
    return logs


def measure_made_up_speeds(
    monkeypatch: pytest.MonkeyPatch, num_failed: int = 0, failure: str = "", end: End = End.AS_PLANNED
) -> list[Path]:
    """Replace the measurement with made-up speeds. Return the step trace folders of the runners.

    num_failed: failed requests of the first round. failure: of a server that has written a log.
    """
    folders: list[Path] = []

    class Runner:
        def __init__(self, *collaborators: Any) -> None:
            *_, self.logs, _, traces = collaborators
            folders.append(traces)

        def run(self) -> Comparison:
            comparison = compare_speeds({"a": (100.0, 101.0), "b": (150.0, 151.0)})
            first, *others = comparison.rounds
            first = replace(first, metrics=replace(first.metrics, num_errors=num_failed))
            if failure:
                (self.logs / "b.log").write_text("out of memory")
            return replace(comparison, rounds=(first, *others), stopped=failure, end=end)

    monkeypatch.setattr(SvgRenderer, "render", lambda self, plot, width: "")  # drawing takes a second
    monkeypatch.setattr(compare_command, "ComparisonRunner", Runner)
    monkeypatch.setattr(compare_command, "read_selection", lambda selection, plan, *others: ((), plan))
    return folders
