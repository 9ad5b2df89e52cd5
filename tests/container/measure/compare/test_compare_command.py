"""The command line of `lmi compare`: options, and errors before any server starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from container.measure.bench.arrivals import Users
from container.measure.bench.lengths import Fixed
from container.measure.bench.workload import Workload, load_tokenizer, make_requests
from container.measure.compare import compare_command
from container.measure.compare.compare_command import CompareOptions, compare
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import StoppingRule
from container.measure.compare.results import Comparison
from container.measure.compare.server_process import ServerProcess, StartServer
from tests.container.measure.compare.made_up import compare_speeds, make_configuration
from tests.lmi_server.fakes import build_model_folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATH: at least two configurations are required, or one with --set (got 0)"),
        (["one"], "(got 1)"),
        (["one", "two", "--examples", "x"], "--examples: requires --aws-post"),
        (
            ["one", "two", "--set", "option.dtype=fp32,bf16"],
            "--set: requires exactly one file or folder (got one two)",
        ),
        (["http://x:1", "--set", "option.dtype=fp32"], "--set: requires exactly one file or folder"),
        (["one", "--set", "option.dtipe=fp32"], "unknown key (got option.dtipe); did you mean option.dtype?"),
        (["one", "--set", "option.dtype=fp32,fp32"], "allowed: option.dtype=1,2,4, each key once"),
        (["one", "--set", "option.dtype"], "each key once"),
        (["one", "--set", f"job_queue_size={','.join(map(str, range(1, 34)))}"], "allowed: at most 32"),
        (["one", "--attribute"], "--attribute: requires one dynamic and one rolling configuration (got 1)"),
        (["one", "http://"], "URL: not the address of a server"),
        (["one", "two", "--precision", "3"], "such as 3%"),
        (["one", "two", "--precision", "0%"], "above 0"),
        (["one", "two", "--time", "10"], "such as 10m"),
        (["one", "two", "--max-rounds", "3"], "--max-rounds: requires --precision or --time"),
        (["--aws-post", "--attribute"], "--attribute: not supported with --aws-post"),
        (
            ["--aws-post", "one"],
            "PATH: not supported with --aws-post, which sets the configurations (got one)",
        ),
        (["--aws-post", "--input-tokens", "32"], "--input-tokens: not supported with --aws-post"),
        (["--aws-post", "--lengths", "fixed"], "--lengths: not supported with --aws-post"),
        (["--aws-post", "--output-tokens", "8"], "--output-tokens"),
        (["one", "two", "--output", "nowhere/at/all.md"], "nowhere/at/all.md: there is no folder"),
        (["one", "two", "--report", "report.pdf"], "allowed: a name ending in .html"),
        (["one", "two", "--rounds", "0"], "--rounds"),
        (["one", "two", "--dialect", "latin"], "'lmi', 'openai'"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(compare, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_all_configurations_that_cannot_be_served_are_named_before_any_server_starts(tmp_path: Path) -> None:
    folder = tmp_path / "typo"
    folder.mkdir()
    (folder / "serving.properties").write_text("engine=MPI\nbatch_sise=2\n")
    output = tmp_path / "report.md"
    result = CliRunner().invoke(compare, [str(folder), str(tmp_path / "none"), "--output", str(output)])
    assert result.exit_code == 1
    assert "typo: " in result.output
    assert "did you mean batch_size?" in result.output
    assert "none: " in result.output
    assert "no such file" in result.output
    assert not output.exists()


def test_missing_examples_of_the_post_are_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(compare, ["--aws-post", "--examples", str(tmp_path)])
    assert result.exit_code == 1
    assert "smollm2-dynamic" in result.output
    assert "allowed: the folder properties_examples" in result.output


def read_options(arguments: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> CompareOptions:
    """Return the parsed options, without running a comparison."""
    seen: list[CompareOptions] = []

    def record(options: CompareOptions, *others: object) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(compare_command, "run_comparison", record)
    result = CliRunner().invoke(compare, [*arguments, "--output", str(folder / "report.md")])
    assert result.exit_code == 0, result.output
    return seen[0]


def test_the_default_is_five_rounds_of_several_waves_with_spread_lengths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = read_options(["one", "two"], monkeypatch, tmp_path).plan
    assert plan.num_rounds >= 5
    (scenario,) = plan.scenarios
    assert isinstance(scenario.arrivals, Users)
    assert scenario.workload.num_requests >= 3 * scenario.arrivals.num_users
    tokenizer = load_tokenizer(build_model_folder(tmp_path / "model"))
    requests = make_requests(scenario.workload, tokenizer, plan.round_seed(1))
    for tokens in ([one.prompt_tokens for one in requests], [one.output_tokens for one in requests]):
        assert len(set(tokens)) > 20


def test_a_load_of_fixed_lengths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ["--lengths", "fixed", "--output-tokens", "128", "--requests", "32"]
    (scenario,) = read_options(["one", "two", *options], monkeypatch, tmp_path).plan.scenarios
    assert scenario.name == "32 tokens in, 128 out"
    assert scenario.workload == Workload(Fixed(32), Fixed(128), 32)


def test_precision_and_time_set_a_stopping_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert read_options(["one", "two"], monkeypatch, tmp_path).plan.stopping is None
    options = ["--precision", "2.5%", "--time", "10m", "--max-rounds", "20"]
    plan = read_options(["one", "two", *options], monkeypatch, tmp_path).plan
    assert (plan.stopping, plan.num_rounds) == (StoppingRule(0.025, 20, 600.0), 5)
    with_more_rounds = read_options(
        ["one", "two", "--precision", "3 %", "--rounds", "60"], monkeypatch, tmp_path
    ).plan
    assert with_more_rounds.stopping == StoppingRule(0.03, 60)


def test_the_posts_scenarios_have_their_own_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = read_options(["--aws-post"], monkeypatch, tmp_path).plan.scenarios
    assert first.workload == Workload(Fixed(32), Fixed(128), 32)
    assert second.workload == Workload(Fixed(256), Fixed(32), 32)
    assert (first.arrivals, second.arrivals) == (Users(32), Users(32))


def test_started_servers_do_not_get_the_callers_admin_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environs: list[dict[str, str]] = []

    def start(config: Configuration, log: Path, environ: dict[str, str]) -> None:
        environs.append(environ)

    def run(options: CompareOptions, environ: object, machine: object, start: StartServer) -> int:
        start(make_configuration("a"), tmp_path / "log", {"EXTRA": "1"})
        return 0

    monkeypatch.setenv("LMI_ADMIN_TOKEN", "of-another-server")
    monkeypatch.setattr(ServerProcess, "start", start)
    monkeypatch.setattr(compare_command, "run_comparison", run)
    CliRunner().invoke(compare, ["one", "two", "--output", str(tmp_path / "report.md")])
    (environ,) = environs
    assert "LMI_ADMIN_TOKEN" not in environ
    assert environ["PATH"]
    assert environ["EXTRA"] == "1"


def test_the_report_is_written_and_the_trace_folder_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = measure_made_up_speeds(monkeypatch)
    options = ["--output", str(tmp_path / "report.md"), "--report", str(tmp_path / "page.html")]
    result = CliRunner().invoke(compare, ["one", "two", *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# Comparison of a and b")
    assert "<h1>Comparison of a and b</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [folder.exists() for folder in folders] == [False]


def test_results_are_kept_as_json_when_the_report_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure_made_up_speeds(monkeypatch)
    output = tmp_path / "report.md"
    output.symlink_to(tmp_path / "gone" / "report.md")
    result = CliRunner().invoke(
        compare, ["one", "two", "--output", str(output), "--json", str(tmp_path / "results.json")]
    )
    assert result.exit_code == 1
    assert f"Error: --output: cannot write {output}: No such file or directory" in result.output
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rounds"]


def measure_made_up_speeds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the measurement with made-up speeds. Return the step trace folders of the runners."""
    folders: list[Path] = []

    class Runner:
        def __init__(self, *collaborators: Any) -> None:
            folders.append(collaborators[-1])

        def run(self) -> Comparison:
            return compare_speeds({"a": (100.0, 101.0), "b": (150.0, 151.0)})

    monkeypatch.setattr(compare_command, "ComparisonRunner", Runner)
    monkeypatch.setattr(compare_command, "read_selection", lambda selection, plan, *others: ((), plan))
    return folders
