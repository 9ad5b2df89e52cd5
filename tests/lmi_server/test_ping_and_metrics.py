"""`GET /ping`, `/health`, `/version`, `/metrics` and the log line of a request."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from container.measure.compare import scrape
from engines.core import EngineStats, FinishReason
from engines.errors import EngineDied
from engines.health import STALE_AFTER_SECONDS, EngineState, Health
from tests.lmi_server.fakes import FakeEngine, make_stats, says, tokens
from tests.support.logs import Logs
from tests.support.metrics import parse_metrics


def samples(client: FlaskClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = client.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


PATHS = ["/ping", "/health"]


@pytest.mark.parametrize("path", PATHS)
def test_ping_when_ready(path: str, client: FlaskClient) -> None:
    reply = client.get(path)
    assert reply.status_code == 200
    assert reply.get_json() == {"status": "Healthy"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("health", "reason_part"),
    [
        (Health(EngineState.STARTING, "reading weights", 0.0), "loading: reading weights"),
        (Health(EngineState.READY, "", STALE_AFTER_SECONDS + 1), "no progress"),
        (Health(EngineState.DRAINING, "", 0.0), "shutting down"),
        (Health(EngineState.FAILED, "rank 1 is gone", 0.0), "rank 1 is gone"),
    ],
)
def test_ping_reports_why_the_engine_is_not_ready(
    health: Health, reason_part: str, path: str, client: FlaskClient, engine: FakeEngine
) -> None:
    engine.state = health
    reply = client.get(path)
    assert reply.status_code == 503
    assert reason_part in reply.get_json()["reason"]
    assert int(reply.headers["Retry-After"]) > 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("serving", [1, 0])
def test_ping_reports_how_many_copies_serve(
    path: str, serving: int, client: FlaskClient, engine: FakeEngine
) -> None:
    up, down = Health(EngineState.READY, "", 0.0), Health(EngineState.FAILED, "killed", 0.0)
    engine.state = replace(up if serving else down, copies=(down, up if serving else down, down))
    reply = client.get(path)
    assert reply.status_code == (200 if serving else 503)
    assert reply.get_json()["copies"] == {"serving": serving, "total": 3}


def test_version(client: FlaskClient) -> None:
    assert client.get("/version").get_json() == {"version": importlib.metadata.version("lmi-server")}


def test_metrics_include_the_engines_snapshot(client: FlaskClient) -> None:
    found = samples(client)
    none = frozenset[tuple[str, str]]()
    assert found["lmi_requests_running", none] == 3
    assert found["lmi_kv_blocks_free", none] == 60
    assert found["lmi_steps_total", none] == 17
    assert found["lmi_batch_size_count", none] == 11
    assert found["lmi_batch_size_sum", none] == 50
    assert found["lmi_batch_size_bucket", frozenset({("le", "8.0")})] == 11
    attention = {("part", "attention")}
    assert found["lmi_step_seconds_bucket", frozenset(attention | {("le", "0.1")})] == 2
    assert found["lmi_step_seconds_bucket", frozenset(attention | {("le", "1.0")})] == 3
    assert found["lmi_step_seconds_bucket", frozenset(attention | {("le", "+Inf")})] == 4
    assert found["lmi_step_seconds_sum", frozenset(attention)] == 3.5
    assert found["lmi_engine_up", none] == 1


def test_metrics_of_copies_are_labelled_and_not_summed(client: FlaskClient, engine: FakeEngine) -> None:
    stats = make_stats()
    third = replace(stats, gauges={**stats.gauges, "lmi_kv_blocks_free": 5.0})
    engine.engine_stats = EngineStats(
        stats.info, {"lmi_copies": 3.0}, counters={}, histograms=(), copies={"1": stats, "3": third}
    )
    found = samples(client)
    assert found["lmi_steps_total", frozenset({("copy", "1")})] == 17
    assert found["lmi_kv_blocks_free", frozenset({("copy", "3")})] == 5
    assert found["lmi_step_seconds_sum", frozenset({("part", "attention"), ("copy", "3")})] == 3.5
    assert found["lmi_batch_size_count", frozenset({("copy", "1")})] == 11
    # A sum over the copies would drop while a copy does not answer, and `rate` would count its history again.
    without_copy = {name for name, labels in found if "copy" not in dict(labels)}
    assert without_copy == {"lmi_engine_up", "lmi_engine_info", "lmi_copies"}
    text = client.get("/metrics").text
    assert parse_metrics(text).samples["lmi_steps_total"] == 34
    assert scrape.parse_metrics(text).samples["lmi_steps_total"] == 34


def test_metrics_count_requests_by_route_and_status(client: FlaskClient) -> None:
    client.post("/invocations", json={"inputs": "Hello"}, buffered=True)
    client.post("/invocations", json={"inputs": ""}, buffered=True)
    client.get("/a/path/of/the/clients/choice", buffered=True)
    found = samples(client)

    def count(path: str, status: str) -> float:
        return found["lmi_http_requests_total", frozenset({("path", path), ("status", status)})]

    assert count("/invocations", "200") == 1
    assert count("/invocations", "424") == 1
    assert count("other", "404") == 1


@pytest.mark.parametrize(
    ("path", "body"), [("/invocations", {"inputs": "Hello"}), ("/v1/completions", {"prompt": "Hello"})]
)
def test_a_stream_that_fails_counts_with_the_status_of_its_error(
    path: str, body: dict[str, str], client: FlaskClient, engine: FakeEngine
) -> None:
    engine.script = lambda request: tokens(request, [5], EngineDied("gone"))
    assert client.post(path, json={**body, "stream": True}, buffered=True).status_code == 200
    engine.script = lambda request: tokens(request, [5], FinishReason.LENGTH)
    assert client.post(path, json={**body, "stream": True}, buffered=True).status_code == 200
    engine.script = says("one two three", per_step=1)
    reply = client.post(path, json={**body, "stream": True}, buffered=False)
    next(reply.iter_encoded())
    reply.close()  # the client leaves
    found = samples(client)
    for status in ("503", "200", "499"):
        assert found["lmi_http_requests_total", frozenset({("path", path), ("status", status)})] == 1


def test_a_double_slash_is_no_redirect(client: FlaskClient) -> None:
    assert client.post("/v1//chat/completions", json={"messages": []}).status_code == 404


def test_metrics_of_an_engine_that_does_not_answer(client: FlaskClient, engine: FakeEngine) -> None:
    engine.engine_stats = None
    found = samples(client)
    assert found["lmi_engine_up", frozenset()] == 0
    assert not any(name.startswith("lmi_steps") for name, _ in found)
    assert not scrape.parse_metrics(client.get("/metrics").text).idle, "the engine may be busy"


_TWO_WORKERS = """
import os
from lmi_server.metrics import Metrics
from tests.support.logs import Logs
from tests.lmi_server.fakes import FakeEngine
metrics = Metrics()
child = os.fork()
metrics.count_request("/invocations", 200)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print(metrics.render(FakeEngine(lambda request: [])).decode())
"""


def test_metrics_of_several_workers_are_added_up(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _TWO_WORKERS],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": f"{root}:{root / 'kernels'}"},
    )
    assert re.search(r'lmi_http_requests_total\{path="/invocations",status="200"\} 2\.0', done.stdout)


def log_line(logs: Logs) -> str:
    lines = [r.getMessage() for r in logs.records if r.name == "lmi_server.request_log"]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_logs_one_line(
    stream: bool, client: FlaskClient, engine: FakeEngine, logs: Logs
) -> None:
    body = {"inputs": "a secret prompt", "stream": stream}
    client.post("/invocations", json=body, headers={"x-request-id": "mine"}, buffered=True)
    line = log_line(logs)
    assert line.startswith(engine.requests[0].id + " client_id=mine POST /invocations status=200 ")
    assert f"prompt_tokens={len(engine.requests[0].prompt_token_ids)} " in line
    assert re.search(r"generated_tokens=[1-9]\d* ttft_ms=\d+\.\d total_ms=\d+\.\d finish=length$", line)
    assert "secret" not in logs.text


def test_log_line_of_a_refused_request(client: FlaskClient, logs: Logs) -> None:
    client.post("/invocations", json={}, buffered=True)
    assert "status=424" in log_line(logs)
    assert log_line(logs).endswith("finish=invalid_request")


def test_health_checks_and_metrics_are_not_logged(client: FlaskClient, logs: Logs) -> None:
    for path in PATHS:
        client.get(path, buffered=True)
    client.get("/metrics", buffered=True)
    assert not [r for r in logs.records if r.name == "lmi_server.request_log"]
