"""The command line of `lmi bench`: output, files and exit codes."""

from __future__ import annotations

import contextlib
import csv
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.cli import main
from container.measure.bench import preflight
from container.models.files.bundled import bundled_folder
from tests.container.measure.bench.scripted_server import Script, ScriptedServer
from tests.container.measure.conftest import StartScripted
from tests.lmi_server.fakes import build_model_folder

SIZES = ("--input-tokens", "16", "--output-tokens", "3")
USERS = ("--users", "2", "--requests", "6")

Invoke = Callable[..., Result]
"""Runs `lmi bench` on a server or a URL, with more options. load: options of users or rates."""


@pytest.fixture
def invoke(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setattr(preflight, "_PING_TIMEOUT_SECONDS", 200.0)

    def run(server: ScriptedServer | str, *options: str, load: Sequence[str] = USERS) -> Result:
        url = server if isinstance(server, str) else server.url
        return CliRunner().invoke(
            main, ["bench", url, *SIZES, *load, "--tokenizer", str(tiny_model), *options]
        )

    return run


def test_a_successful_run_prints_a_table_and_exits_with_0(
    scripted: StartScripted, invoke: Invoke, tiny_model: Path, tmp_path: Path
) -> None:
    server = scripted()
    result = invoke(server, "--json", str(tmp_path / "out.json"))
    assert (result.exit_code, result.exception) == (0, None)
    for text in (
        *("mean", "p50", "p90", "p95", "p99", "TTFT", "ITL", "TPOT"),
        *("to the first token", "between tokens", "whole request"),
        "output tokens/s",
        "0 of 6 requests failed",
        f"tokenizer {tiny_model}",
    ):
        assert text in result.stdout
    assert "6 requests by 2 users: 100 %" in result.stderr
    assert len(server.seen) == 6 + 2  # 2 to warm up
    assert json.loads((tmp_path / "out.json").read_text())["metrics"]["num_requests"] == 6


def test_json_on_stdout_is_the_only_output_there(
    scripted: StartScripted, invoke: Invoke, tiny_model: Path
) -> None:
    server = scripted(lambda number, body: Script(prompt_tokens=16))
    result = invoke(server, "--dialect", "openai", "--json", "-", "--seed", "5", "--warm-up", "0")
    document = json.loads(result.stdout)
    assert (document["url"], document["dialect"], document["num_warm_up"]) == (server.url, "openai", 0)
    assert document["tokenizer"] == str(tiny_model)
    assert document["load"] == "6 requests by 2 users, 16 tokens in, 3 out"
    assert document["seed"] == 5
    figures = document["metrics"]
    assert (figures["num_requests"], figures["num_errors"], figures["output_tokens"]) == (6, 0, 18)
    assert figures["ttft"].keys() == {"mean", "p50", "p90", "p95", "p99"}
    assert figures["output_tokens_per_second"] == pytest.approx(18 / figures["wall_seconds"])
    assert document["versions"]["python"]
    assert "between pieces of text" in result.stderr


def test_a_failed_request_is_reported_with_exit_code_1_and_leaves_empty_csv_cells(
    scripted: StartScripted, invoke: Invoke, tmp_path: Path
) -> None:
    refusal = Script(status=503, body=b'{"error":"queue full"}')
    server = scripted(lambda number, body: refusal if number == 0 else Script())
    options = ("--warm-up", "0", "--csv", str(tmp_path / "out.csv"))
    result = invoke(server, *options, load=("--burst", "--requests", "6"))
    assert result.exit_code == 1
    assert "1 of 6 requests failed" in result.stdout
    assert "error: 1 x HTTP 503: queue full" in result.stdout
    rows = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    (failed,) = [row for row in rows if row["error"]]
    assert (failed["ttft"], failed["tpot"], failed["error"]) == ("", "", "HTTP 503: queue full")


def test_json_is_written_even_if_the_csv_cannot_be_written(
    scripted: StartScripted, invoke: Invoke, tmp_path: Path
) -> None:
    rows, results = tmp_path / "out.csv", tmp_path / "out.json"
    rows.symlink_to(tmp_path / "gone" / "out.csv")
    result = invoke(scripted(), "--csv", str(rows), "--json", str(results))
    assert result.exit_code == 1
    assert result.stderr.endswith(f"Error: --csv: cannot write {rows}: No such file or directory\n")
    assert json.loads(results.read_text())["metrics"]["num_requests"] == 6


def test_a_failed_warm_up_ends_the_benchmark(scripted: StartScripted, invoke: Invoke) -> None:
    server = scripted(lambda number, body: Script(status=404, body=b'{"error":"no such path","code":404}'))
    result = invoke(server, "--dialect", "openai")
    assert result.exit_code == 1
    assert "the warm-up failed: HTTP 404: POST /v1/completions: no such path" in result.stderr
    assert "--dialect" in result.stderr
    assert len(server.seen) == 2


def test_warm_up_prompts_are_not_measured(scripted: StartScripted, invoke: Invoke) -> None:
    server = scripted()
    # As many as are measured: with the same seed the prompts would be the same.
    invoke(server, "--warm-up", "6")
    assert len({seen.body["inputs"] for seen in server.seen}) == 12


def test_a_refused_connection_is_reported(invoke: Invoke) -> None:
    with socket.socket() as bound:  # no other process can take the port
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        result = invoke(url)
    assert result.exit_code == 1
    assert f"nothing listens at {url} (Connection refused); --wait SECONDS waits" in result.stderr


def test_a_host_name_that_cannot_be_resolved_is_reported(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_name(*arguments: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    result = invoke("http://no-such-host.invalid:1")
    assert result.exit_code == 1
    assert "cannot resolve the host name of http://no-such-host.invalid:1; --wait" in result.stderr


@pytest.mark.parametrize("accepts", [True, False], ids=["accepts", "full backlog"])
def test_a_server_that_does_not_respond_in_time_is_reported(
    accepts: bool, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_PING_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as waiting:
        address = listening.getsockname()
        for _ in range(0 if accepts else 8):  # the kernel accepts a few more than the backlog
            waiting.enter_context(one := socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        result = invoke(url)
    assert result.exit_code == 1
    assert f"{url}/ping did not respond within 0.1 s; --wait" in result.stderr


def test_a_server_without_tls_is_reported(scripted: StartScripted, invoke: Invoke) -> None:
    url = scripted().url.replace("http:", "https:")
    result = invoke(url)
    assert result.exit_code == 1
    assert f"the TLS connection to {url} failed (an http:// address?); --wait" in result.stderr


def test_a_server_that_is_not_ready_is_reported_with_its_own_reason(
    scripted: StartScripted, invoke: Invoke
) -> None:
    body = b'{"status":"Unhealthy","state":"starting","reason":"the model is loading"}'
    server = scripted(ping=lambda: (503, body))
    result = invoke(server, "--wait", "0.3")
    assert result.exit_code == 1
    assert f"{server.url} is not ready: /ping answers 503, the model is loading after 0.3 s" in result.stderr
    assert server.seen == []


def test_wait_waits_until_the_server_is_ready(scripted: StartScripted, invoke: Invoke) -> None:
    responses = iter([(503, b"loading"), (200, b"")])
    result = invoke(scripted(ping=lambda: next(responses)), "--wait", "200")
    assert result.exit_code == 0
    assert "/ping answers 503, loading; waiting" in result.stderr


def test_a_server_without_ping_counts_as_ready(scripted: StartScripted, invoke: Invoke) -> None:
    assert invoke(scripted(ping=lambda: (404, b""))).exit_code == 0


def test_an_open_loop_with_limits_and_a_csv_row_per_request(
    scripted: StartScripted, invoke: Invoke, tmp_path: Path
) -> None:
    load = ("--rate", "200", "--arrivals", "constant", "--requests", "6", "--slo", "latency=60s")
    result = invoke(scripted(), "--csv", str(tmp_path / "out.csv"), load=load)
    assert result.exit_code == 0, result.output
    assert "6 requests at 200/s (constant), 16 tokens in, 3 out" in result.stdout
    assert "100.0 % of all requests within latency 60.0 s" in result.stdout
    assert "tokens/s, TTFT p50 " in result.stderr
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [float(row["scheduled"]) for row in rows] == pytest.approx([number / 200 for number in range(6)])
    assert {(row["run"], row["prompt_tokens"], row["output_tokens"], row["error"]) for row in rows} == {
        ("1", "16", "3", "")
    }
    assert all(0 < float(row["ttft"]) <= float(row["latency"]) for row in rows)


def test_a_trace_is_replayed(scripted: StartScripted, tiny_model: Path, tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 7}}\n'
    (tmp_path / "t.jsonl").write_text(line.format(5000, 20) + line.format(5010, 30))
    server = scripted()
    arguments = [server.url, "--tokenizer", str(tiny_model), "--trace", str(tmp_path / "t.jsonl")]
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    assert "2 requests over 0.01 s, as recorded, 20 to 30 tokens in (recorded, mean 25)" in result.stdout
    assert [seen.body["parameters"]["max_new_tokens"] for seen in server.seen[-2:]] == [7, 7]


def test_find_rate_lists_every_run(scripted: StartScripted, invoke: Invoke, tmp_path: Path) -> None:
    server = scripted()
    load = ("--find-rate", "--requests", "4", "--slo", "ttft=1ms", "--rate", "2000")
    result = invoke(server, "--json", str(tmp_path / "out.json"), load=load)
    assert "within ttft 1.00 ms" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert len(document["trials"]) <= 12
    assert document["trials"][0]["rate"] == 2000
    best = [trial["rate"] for trial in document["trials"] if not trial["too_high"]]
    assert document["best_rate"] == (max(best) if best else None)
    assert result.exit_code == (0 if best else 1)
    assert {trial["metrics"]["num_requests"] for trial in document["trials"]} == {4}
    # Each run has different prompts, and so has a search with another seed.
    invoke(server, "--seed", "1", load=load)
    assert len({seen.body["inputs"] for seen in server.seen}) == len(server.seen)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("127.0.0.1:8080",), "such as http://127.0.0.1:8080"),
        (("ftp://host",), "http:// or https://"),
        (("http://host:port",), "such as"),
        (("http://host/?a=1",), "scheme, host, port and path only"),
        (("http://host:1/v1/completions",), "--dialect openai adds /v1/completions itself"),
        (("http://host:1", "--users", "0"), "--users"),
        (("http://host:1", "--rate", "0"), "--rate"),
        (("http://host:1", "--dialect", "opanai"), "openai"),
        (("http://host:1", "--tokenizer", "/nowhere"), "/nowhere: no such file"),
        (("http://host:1", "--json", "/nowhere/out.json"), "there is no folder /nowhere"),
        (("http://host:1", "--csv", "/nowhere/out.csv"), "there is no folder /nowhere"),
        (
            ("http://host:1", "--input-tokens", "1", "--requests", "9999"),
            "--requests: cannot build 9999 different prompts of 1 tokens with this tokenizer; lower --requests",
        ),
        (("http://host:1", "--slo", "ttfx=1s"), "did you mean ttft?"),
        (
            ("http://host:1", "--find-rate", "--burst"),
            "--find-rate: not supported with --burst; it sets the rate itself",
        ),
        (("http://host:1", "--preset", "aws-3"), "'aws-1'"),
        (
            ("http://host:1", "--trace", "nowhere.jsonl"),
            "--trace: cannot read nowhere.jsonl: No such file",
        ),
    ],
)
def test_wrong_arguments_exit_with_2(tiny_model: Path, arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(main, ["bench", "--tokenizer", str(tiny_model), *arguments])
    assert result.exit_code == 2
    assert text in result.stderr


def test_the_tokenizer_defaults_to_that_of_the_bundled_model(scripted: StartScripted, tmp_path: Path) -> None:
    folder = build_model_folder(bundled_folder(tmp_path))
    result = CliRunner().invoke(
        main, ["bench", scripted().url, *SIZES, *USERS], env={"LMI_CACHE_DIR": str(tmp_path)}
    )
    assert result.exit_code == 0, result.stderr
    assert f"tokenizer: {folder}, of the bundled model" in result.stderr
    assert str(folder) in result.stdout


def test_a_tokenizer_folder_may_be_a_model_without_tokenizer_json(
    scripted: StartScripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMI_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text('{"vocab_size": 400}')
    arguments = [scripted().url, *SIZES, "--users", "1", "--tokenizer", str(tmp_path)]
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 0, result.output
    assert f"tokenizer: {tmp_path}/cache/tokenizers/" in result.stderr
    (tmp_path / "config.json").unlink()
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert f"--tokenizer: the model folder {tmp_path} has no tokenizer" in result.stderr


def test_a_tokenizer_is_required_without_the_bundled_model(scripted: StartScripted, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["bench", scripted().url, *SIZES, *USERS], env={"LMI_CACHE_DIR": str(tmp_path)}
    )
    assert result.exit_code == 2
    assert "--tokenizer: not given, and the bundled model is not prepared" in result.stderr
