"""The command line of `lmi simulate`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.cli import main
from container.machine import Machine
from container.measure.simulate import simulate_command
from container.measure.simulate.simulation import simulate as run_simulation
from tests.container.measure.compare.made_up import write_properties
from tests.container.measure.simulate.made_up import Times, rolling_server, scenario
from tests.support.paths import REPO_ROOT

SMALL = ("--users", "4", "--requests", "8", "--input-tokens", "16", "--output-tokens", "4")


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    lines = ("engine=MPI", "option.model_id=s3://bucket/llama", "option.tensor_parallel_degree=1")
    return write_properties(tmp_path / "configuration", *lines, "option.max_model_len=2048")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments), *SMALL])


def test_the_report_is_that_of_lmi_bench_marked_as_simulated(configuration: Path, llama: Path) -> None:
    result = invoke(configuration, "--model", llama, "--instance", "ml.g5.48xlarge", "--slo", "ttft=500ms")
    assert (result.exit_code, result.exception) == (0, None)
    for text in (
        "simulated: ",
        "on ml.g5.48xlarge: 8 requests by 4 users",
        "to the first token (TTFT)",
        "p99",
        "goodput",
        "simulated, not measured; step times: a roofline of ml.g5.48xlarge",
        "USD per million output tokens",
        "(ml.g5.48xlarge, us-east-1, 2025-01-26)",
        "(g5.48xlarge, us-east-1, 2026-01-21)",
        "0 of 8 requests failed",
        "sequences per batch",
        "note: only one of 8 copies of the model is simulated",
    ):
        assert text in result.stdout
    assert "client:" not in result.stdout


def test_json_and_csv_output(configuration: Path, llama: Path, tmp_path: Path) -> None:
    rows = tmp_path / "requests.csv"
    options = ("--device", "A10G", "--count", "2", "--price-per-hour", "1.5", "--csv", rows, "--json", "-")
    result = invoke(configuration, "--model", llama, *options)
    values = json.loads(result.stdout)
    assert values["simulated"] is True
    assert values["hardware"] == "2 x A10G"
    assert values["metrics"]["output_tokens"] == 32
    assert values["costs"][0]["price"]["per_hour"] == 1.5
    assert values["kv_cache_blocks"] > 100
    assert values["counters"]["lmi_steps_total"] >= 8
    assert values["calibration"] is None
    with rows.open() as file:
        assert len(list(csv.DictReader(file))) == 8
    rows.unlink()
    rows.symlink_to(tmp_path / "gone" / "requests.csv")
    result = invoke(configuration, "--model", llama, *options)
    assert (result.exit_code, json.loads(result.stdout)["simulated"]) == (1, True)
    assert f"Error: --csv: cannot write {rows}: No such file or directory" in result.stderr


def test_this_machine_with_step_times_from_a_trace(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_command, "detect", lambda environ: Machine(2, 8 << 30))
    trace = tmp_path / "trace.jsonl"
    run_simulation(rolling_server(llama), Times(0.25), scenario(20, 40, 20), step_trace=str(trace))
    example = REPO_ROOT / "properties_examples" / "llama-dummy"
    values = json.loads(invoke(example, "--calibrate", trace, "--json", "-").stdout)
    assert values["hardware"] == "this machine"
    assert values["metrics"]["tpot"]["p50"] == pytest.approx(0.25)
    assert sum(values["calibration"]["coefficients"]) > 0
    assert "fitted to" in values["step_times"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "--instance, --device: missing"),
        (("--device", "A10X"), "device: unknown name (got A10X)"),
        (("--instance", "ml.g5.48xlarg"), "did you mean ml.g5.48xlarge"),
        (("--instance", "ml.c7i.4xlarge"), "the speed of ml.c7i.4xlarge is not known"),
        (("--instance", "ml.g5.48xlarge", "--device", "A10G"), "--device: not supported with --instance"),
        (("--instance", "ml.g5.48xlarge", "--count", "2"), "--count: not supported with --instance"),
        (("--instance", "ml.g5.48xlarge", "--prices", "none.json"), "--prices: cannot read none.json"),
        (("--device", "A10G", "--prices", "none.json"), "--prices: requires --instance"),
        (
            ("--instance", "ml.g5.48xlarge", "--prices", "none.json", "--price-per-hour", "2"),
            "--prices, --price-per-hour: mutually exclusive",
        ),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], problem: str, configuration: Path, llama: Path
) -> None:
    result = invoke(configuration, "--model", llama, *options)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_a_model_that_is_not_on_this_disk_requires_a_config(configuration: Path) -> None:
    result = invoke(configuration, "--device", "A10G")
    assert result.exit_code == 2
    assert "--model: required, because s3://bucket/llama is not on this disk" in result.stderr


def test_a_handler_is_refused() -> None:
    result = invoke(REPO_ROOT / "properties_examples" / "handler", "--device", "A10G")
    assert result.exit_code == 2
    assert "user handlers cannot be simulated" in result.stderr


def test_a_model_that_does_not_fit_is_refused(configuration: Path, falcon: Path) -> None:
    result = invoke(configuration, "--model", falcon, "--device", "A10G")
    assert result.exit_code == 1
    assert "GB are needed, but only 24 GB are available" in result.stderr
