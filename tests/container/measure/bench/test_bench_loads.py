"""`lmi bench` with rates, presets, traces, latency limits, and the search for the highest rate."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.measure.bench.bench_command import bench
from tests.container.measure.bench.conftest import StartScripted
from tests.container.measure.bench.scripted_server import Script, ScriptedServer

TINY = ("--input-tokens", "16", "--output-tokens", "3", "--warm-up", "1")


def run(server: ScriptedServer, model: Path, *options: str) -> Result:
    return CliRunner().invoke(bench, [server.url, "--tokenizer", str(model), *TINY, *options])


def test_an_open_loop_with_limits_and_a_csv_row_per_request(
    scripted: StartScripted, tiny_model: Path, tmp_path: Path
) -> None:
    options = ("--rate", "200", "--arrivals", "constant", "--requests", "6", "--slo", "latency=60s")
    result = run(scripted(), tiny_model, *options, "--csv", str(tmp_path / "out.csv"))
    assert result.exit_code == 0, result.output
    assert "6 requests at 200/s (constant), 16 tokens in, 3 out" in result.stdout
    assert "100.0 % of all requests within latency 60.0 s" in result.stdout
    for text in ("mean", "p95", "TTFT", "ITL", "TPOT"):
        assert text in result.stdout
    assert "tokens/s, TTFT p50 " in result.stderr
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [float(row["scheduled"]) for row in rows] == pytest.approx([number / 200 for number in range(6)])
    assert {(row["run"], row["prompt_tokens"], row["output_tokens"], row["error"]) for row in rows} == {
        ("1", "16", "3", "")
    }
    assert all(0 < float(row["ttft"]) <= float(row["latency"]) for row in rows)


def test_options_override_the_preset(scripted: StartScripted, tiny_model: Path) -> None:
    server = scripted()
    result = run(
        server, tiny_model, "--preset", "databricks", "--scale", "0.02", "--ramp", "100", "--json", "-"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["load"] == (
        "5 requests by 1 users (ramp: 100 new users each second), 16 tokens in (normal, standard deviation 4.1), 3 out"
    )
    assert document["scenario"]["name"] == "databricks"
    assert len(server.seen) == 5 + 1


def test_a_failed_request_leaves_empty_csv_cells(
    scripted: StartScripted, tiny_model: Path, tmp_path: Path
) -> None:
    server = scripted(lambda number, body: Script(status=503, body=b'{"error":"queue full"}'))
    options = ("--burst", "--requests", "2", "--warm-up", "0", "--csv", str(tmp_path / "out.csv"))
    assert run(server, tiny_model, *options).exit_code == 1
    first, _ = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert (first["ttft"], first["tpot"], first["error"]) == ("", "", "HTTP 503: queue full")


def test_a_trace_is_replayed(scripted: StartScripted, tiny_model: Path, tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 7}}\n'
    (tmp_path / "t.jsonl").write_text(line.format(5000, 20) + line.format(5010, 30))
    server = scripted()
    result = CliRunner().invoke(
        bench, [server.url, "--tokenizer", str(tiny_model), "--trace", str(tmp_path / "t.jsonl")]
    )
    assert result.exit_code == 0, result.output
    assert "2 requests over 0.01 s, as recorded, 20 to 30 tokens in (recorded, mean 25)" in result.stdout
    assert [seen.body["parameters"]["max_new_tokens"] for seen in server.seen[-2:]] == [7, 7]


def test_find_rate_lists_every_run(scripted: StartScripted, tiny_model: Path, tmp_path: Path) -> None:
    server = scripted()
    options = ("--find-rate", "--requests", "4", "--slo", "ttft=1ms", "--rate", "2000")
    result = run(server, tiny_model, *options, "--json", str(tmp_path / "out.json"))
    assert "within ttft 1.00 ms" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert len(document["trials"]) <= 12
    assert document["trials"][0]["rate"] == 2000
    best = [trial["rate"] for trial in document["trials"] if not trial["too_high"]]
    assert document["best_rate"] == (max(best) if best else None)
    assert result.exit_code == (0 if best else 1)
    assert {trial["figures"]["num_requests"] for trial in document["trials"]} == {4}
    # Each run has different prompts.
    assert len({seen.body["inputs"] for seen in server.seen}) == len(server.seen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slo", "ttfx=1s"), "did you mean ttft?"),
        (("--users", "2", "--rate", "3"), "--users, --rate: mutually exclusive"),
        (("--find-rate", "--burst"), "--find-rate: not supported with --burst; it sets the rate itself"),
        (("--preset", "aws-3"), "'aws-1'"),
        (("--trace", "nowhere.jsonl"), "--trace: cannot read nowhere.jsonl: No such file"),
        (("--csv", "/nowhere/out.csv"), "there is no folder /nowhere"),
        (("--rate", "0"), "--rate"),
    ],
)
def test_wrong_arguments_exit_with_2(tiny_model: Path, options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(bench, ["http://host:1", "--tokenizer", str(tiny_model), *options])
    assert result.exit_code == 2
    assert message in result.stderr
