"""`lmi bench` as it is typed: what it prints, writes and ends with."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.measure.bench import preflight
from container.measure.bench.bench_command import bench
from container.models.files.bundled import bundled_folder
from tests.container.measure.bench.conftest import StartScripted
from tests.container.measure.bench.scripted_server import Script, ScriptedServer
from tests.lmi_server.fakes import build_model_folder

SMALL = ("--users", "2", "--requests", "6", "--input-tokens", "16", "--output-tokens", "3")


Invoke = Callable[..., Result]
"""The fixture `invoke`: `lmi bench` on a server or a URL, with more options."""


@pytest.fixture
def invoke(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setattr(preflight, "_PING_TIMEOUT_SECONDS", 200.0)

    def run(server: ScriptedServer | str, *options: str) -> Result:
        url = server if isinstance(server, str) else server.url
        return CliRunner().invoke(bench, [url, *SMALL, "--tokenizer", str(tiny_model), *options])

    return run


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Nothing listens on its port, which is taken, so that nobody else does meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_table_and_exit_code_0(scripted: StartScripted, invoke: Invoke, tiny_model: Path) -> None:
    server = scripted()
    done = invoke(server)
    assert (done.exit_code, done.exception) == (0, None)
    for text in ("p50", "p90", "p99", "to the first token", "between tokens", "whole request"):
        assert text in done.stdout
    assert "output tokens/s" in done.stdout
    assert "0 of 6 requests failed" in done.stdout
    assert f"tokenizer {tiny_model}" in done.stdout
    assert "6 requests by 2 users: 100 %" in done.stderr
    assert len(server.seen) == 6 + 2  # 2 to warm up


def test_json_to_stdout_is_nothing_but_json(
    scripted: StartScripted, invoke: Invoke, tiny_model: Path
) -> None:
    server = scripted(lambda number, body: Script(prompt_tokens=16))
    done = invoke(server, "--dialect", "openai", "--json", "-", "--seed", "5", "--warm-up", "0")
    found = json.loads(done.stdout)
    assert (found["url"], found["dialect"], found["num_warm_up"]) == (server.url, "openai", 0)
    assert found["tokenizer"] == str(tiny_model)
    assert found["load"] == "6 requests by 2 users, 16 tokens in, 3 out"
    assert found["seed"] == 5
    figures = found["figures"]
    assert (figures["num_requests"], figures["num_errors"], figures["output_tokens"]) == (6, 0, 18)
    assert figures["ttft"].keys() == {"mean", "p50", "p90", "p95", "p99"}
    assert figures["output_tokens_per_second"] == pytest.approx(18 / figures["wall_seconds"])
    assert found["versions"]["python"]
    assert "between pieces of text" in done.stderr


def test_json_to_a_file(scripted: StartScripted, invoke: Invoke, tmp_path: Path) -> None:
    done = invoke(scripted(), "--json", str(tmp_path / "out.json"))
    assert done.exit_code == 0
    assert json.loads((tmp_path / "out.json").read_text())["figures"]["num_requests"] == 6
    assert "whole request" in done.stdout


def test_lengths_can_be_spread(scripted: StartScripted, invoke: Invoke) -> None:
    server = scripted()
    done = invoke(
        server, "--lengths", "spread", "--output-tokens", "20", "--requests", "12", "--warm-up", "0"
    )
    assert done.exit_code == 0
    assert (
        "12 requests by 2 users, 8 to 24 tokens in (uniform), 1 to 80 out (exponential, mean 20)"
        in done.stdout
    )
    assert len({seen.body["parameters"]["max_new_tokens"] for seen in server.seen}) > 3


def test_a_failed_request_is_exit_code_1_and_told(scripted: StartScripted, invoke: Invoke) -> None:
    server = scripted(
        lambda number, body: Script(status=503, body=b'{"error":"queue full"}') if number == 3 else Script()
    )
    done = invoke(server)
    assert done.exit_code == 1
    assert "1 of 6 requests failed" in done.stdout
    assert "error: 1 x HTTP 503: queue full" in done.stdout


def test_a_failing_warm_up_ends_it(scripted: StartScripted, invoke: Invoke) -> None:
    server = scripted(lambda number, body: Script(status=404, body=b'{"error":"no such path","code":404}'))
    done = invoke(server, "--dialect", "openai")
    assert done.exit_code == 1
    assert "the warm-up failed: HTTP 404: POST /v1/completions: no such path" in done.stderr
    assert "--dialect" in done.stderr
    assert len(server.seen) == 2


def test_what_wconfigurations_up_is_not_asked_again(scripted: StartScripted, invoke: Invoke) -> None:
    server = scripted()
    invoke(server, "--warm-up", "6")  # as many as are counted: with the same seed they would be the same
    assert len({seen.body["inputs"] for seen in server.seen}) == 12


def test_where_nothing_listens_is_told(invoke: Invoke, silent_address: str) -> None:
    done = invoke(silent_address)
    assert done.exit_code == 1
    assert f"nothing listens at {silent_address} (Connection refused); --wait SECONDS waits" in done.stderr


def test_a_server_that_is_not_ready_is_told_in_its_own_words(scripted: StartScripted, invoke: Invoke) -> None:
    said = b'{"status":"Unhealthy","state":"starting","reason":"the model is loading"}'
    server = scripted(ping=lambda: (503, said))
    done = invoke(server, "--wait", "0.3")
    assert done.exit_code == 1
    assert f"{server.url} is not ready: /ping answers 503, the model is loading after 0.3 s" in done.stderr
    assert server.seen == []


def test_a_server_that_becomes_ready_is_waited_for(scripted: StartScripted, invoke: Invoke) -> None:
    answers = iter([(503, b"loading"), (200, b"")])
    done = invoke(scripted(ping=lambda: next(answers)), "--wait", "200")
    assert done.exit_code == 0
    assert "/ping answers 503, loading; waiting" in done.stderr


def test_a_server_without_ping_is_taken_as_it_is(scripted: StartScripted, invoke: Invoke) -> None:
    assert invoke(scripted(ping=lambda: (404, b""))).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("127.0.0.1:8080",), "such as http://127.0.0.1:8080"),
        (("ftp://host",), "http:// or https://"),
        (("http://host:port",), "such as"),
        (("http://host/?a=1",), "scheme, host, port and path only"),
        (("http://host:1/v1/completions",), "--dialect openai adds /v1/completions itself"),
        (("http://host:1", "--users", "0"), "--users"),
        (("http://host:1", "--dialect", "opanai"), "openai"),
        (("http://host:1", "--tokenizer", "/nowhere"), "/nowhere: no such file"),
        (("http://host:1", "--json", "/nowhere/out.json"), "there is no folder /nowhere"),
        (("http://host:1", "--input-tokens", "1", "--requests", "9999"), "different prompts of"),
    ],
)
def test_what_is_not_understood_is_exit_code_2(
    tiny_model: Path, arguments: tuple[str, ...], text: str
) -> None:
    done = CliRunner().invoke(bench, ["--tokenizer", str(tiny_model), *arguments])
    assert done.exit_code == 2
    assert text in done.stderr


def test_without_a_tokenizer_it_takes_the_bundled_models_and_says_so(
    scripted: StartScripted, tmp_path: Path
) -> None:
    folder = build_model_folder(bundled_folder(tmp_path))
    done = CliRunner().invoke(bench, [scripted().url, *SMALL], env={"LMI_CACHE_DIR": str(tmp_path)})
    assert done.exit_code == 0, done.stderr
    assert f"tokenizer: {folder}, of the bundled model" in done.stderr
    assert str(folder) in done.stdout


def test_without_any_tokenizer_it_asks_for_one(scripted: StartScripted, tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, [scripted().url, *SMALL], env={"LMI_CACHE_DIR": str(tmp_path)})
    assert done.exit_code == 2
    assert "--tokenizer: not given, and the bundled model is not prepared" in done.stderr
