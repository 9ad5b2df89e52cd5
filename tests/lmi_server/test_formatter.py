"""Calls of a user's formatters: their time limit, what ends them, and the health of their process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.base import HandlerEngine
from engines.core import AbortReason
from engines.errors import DeadlineExceeded
from engines.health import STALE_AFTER_SECONDS, EngineState, Health
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from lmi_server.app import create_app
from lmi_server.config import ServerConfig
from lmi_server.generation.formatter import Formatter
from lmi_server.generation.time_limit import TimeLimit
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import ANSWER, Connection
from tests.lmi_server.fakes import FakeEngine, encode, tokens, web_config


class SilentEngine(HandlerEngine):
    """Never answers. Records the ids of all calls and of aborted calls."""

    def __init__(self, on_call: Callable[[], None] = lambda: None) -> None:
        self.calls: list[str] = []
        self.aborted: list[str] = []
        self.state = Health(EngineState.READY, "", 0.0)
        self._on_call = on_call

    def health(self) -> Health:
        return self.state

    def invoke(self, invocation: Invocation) -> Any:
        self.calls.append(invocation.id)
        self._on_call()
        return SimpleNamespace(next=lambda timeout: None)

    def abort(self, request_id: str, reason: AbortReason) -> None:
        self.aborted.append(request_id)


def test_a_call_that_times_out_is_aborted() -> None:
    engine = SilentEngine()
    formatter = Formatter(engine, ("input_formatter",))
    text = "the request took longer than 5 s (timeout); the input formatter had not returned"
    limit = TimeLimit(time.monotonic() - 5, 5, "timeout")
    with pytest.raises(DeadlineExceeded, match=re.escape(text)):
        formatter.rewrite_request(bytearray(b"{}"), {}, ClientWatch(None), limit)
    assert len(engine.calls) == 1
    assert engine.aborted == engine.calls


class SlowEngine(SilentEngine):
    """An output formatter that returns records unchanged, each call after a moment."""

    def invoke(self, invocation: Invocation) -> Any:
        records = json.loads(invocation.content[0][1])["records"]
        body = json.dumps({"results": records, "reads_tokens": False}).encode()

        def answer(timeout: float) -> InvocationOutput:
            time.sleep(0.02)
            return InvocationOutput(invocation.id, AnswerHead(200, "OK", ()), body, last=True)

        return SimpleNamespace(next=answer)


@pytest.mark.parametrize(
    ("engine_kind", "limit"), [("MPI", {}), ("Python", {}), ("MPI", {"timeout": 0.05})], ids=str
)
def test_all_calls_for_a_stream_share_the_time_of_the_request(
    engine_kind: str, limit: dict[str, float], engine: FakeEngine, text_model: TextModel
) -> None:
    engine.script = lambda request: tokens(request, [5] * 60)
    server = ServerConfig(predict_timeout=600 if limit else 0.05)
    formatter = Formatter(SlowEngine(), ("output_formatter",))
    app = create_app(web_config(Path("/none"), server, engine_kind), engine, text_model, formatter)
    body = {"inputs": "Hello", "stream": True, "parameters": {"max_new_tokens": 60, **limit}}
    reply = app.test_client().post("/invocations", json=body)
    *records, last = map(json.loads, reply.text.splitlines())
    assert len(records) < 60
    name = "timeout" if limit else "option.predict_timeout"
    assert last["error"].startswith(f"the request took longer than 0.05 s ({name}); ")
    assert engine.aborted == [engine.requests[0].id]


@pytest.mark.parametrize("engine_kind", ["MPI", "Python"])
@pytest.mark.parametrize("role", ["input_formatter", "output_formatter"])
def test_a_formatter_that_does_not_return_fails_the_request_in_time(
    role: str, engine_kind: str, engine: FakeEngine, text_model: TextModel
) -> None:
    formatter_engine = SilentEngine()
    config = web_config(Path("/none"), ServerConfig(predict_timeout=0.05), engine_kind)
    app = create_app(config, engine, text_model, Formatter(formatter_engine, (role,)))
    reply = app.test_client().post("/invocations", json={"inputs": "Hello"})
    assert reply.status_code == 504
    assert reply.json["error"].startswith("the request took longer than 0.05 s (option.predict_timeout); ")
    assert formatter_engine.aborted == formatter_engine.calls


@pytest.mark.parametrize("path", ["/ping", "/health"])
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (
            Health(EngineState.STARTING, "", 0.0),
            "the model is loading: the formatters are not ready",
        ),
        (
            Health(EngineState.STARTING, "a worker is being restarted: killed", 0.0),
            "the model is loading: the formatters are not ready: a worker is being restarted: killed",
        ),
        (
            Health(EngineState.READY, "", STALE_AFTER_SECONDS + 1),
            "the engine has made no progress for 8 s: the formatters are not ready",
        ),
    ],
)
def test_ping_reports_why_the_formatters_are_not_ready(
    state: Health, reason: str, path: str, engine: FakeEngine, text_model: TextModel
) -> None:
    formatter_engine = SilentEngine()
    formatter = Formatter(formatter_engine, ("output_formatter",))
    client = create_app(web_config(Path("/none")), engine, text_model, formatter).test_client()
    assert client.get(path).status_code == 200
    formatter_engine.state = state
    reply = client.get(path)
    assert reply.status_code == 503
    assert reply.json == {"status": "Unhealthy", "state": state.state.name.lower(), "reason": reason}
    copy = Health(EngineState.READY, "", 0.0)
    engine.state = replace(copy, copies=(copy, copy))
    assert client.get(path).json["copies"] == {"serving": 2, "total": 2}
    engine.state = Health(EngineState.DRAINING, "", 0.0)
    assert client.get(path).json["state"] == "draining"


def test_requests_are_refused_while_the_formatters_load(engine: FakeEngine, text_model: TextModel) -> None:
    formatter_engine = SilentEngine()
    formatter_engine.state = Health(EngineState.STARTING, "why", 0.0)
    formatter = Formatter(formatter_engine, ("input_formatter",))
    client = create_app(web_config(Path("/none")), engine, text_model, formatter).test_client()
    reply = client.post("/invocations", json={"inputs": "Hello"})
    assert reply.status_code == 503
    assert reply.json["error"] == "the model is loading"
    assert formatter_engine.calls == []


@pytest.mark.parametrize("role", ["input_formatter", "output_formatter"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_aborted_when_the_client_disconnects(
    role: str, stream: bool, connection: Connection, engine: FakeEngine, text_model: TextModel
) -> None:
    server, peer = connection
    formatter_engine = SilentEngine(on_call=peer.close)
    app = create_app(web_config(Path("/none")), engine, text_model, Formatter(formatter_engine, (role,)))
    reply = app.test_client().post(
        "/invocations",
        json={"inputs": "Hello", "stream": stream},
        environ_overrides={"gunicorn.socket": server},
    )
    assert reply.text == ""
    assert len(formatter_engine.calls) == 1
    assert formatter_engine.aborted == formatter_engine.calls
    if role == "input_formatter" or not stream:
        assert reply.status_code == 499


class ReturnsBody(Formatter):
    """An input formatter that returns the same body for every request."""

    def __init__(self, body: bytes) -> None:
        super().__init__(SilentEngine(), ("input_formatter",))
        self._body = body

    def _call(
        self, stage: str, data: bytes, headers: Mapping[str, str], client: ClientWatch, limit: TimeLimit
    ) -> bytearray:
        return bytearray(self._body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"inputs": "a", "request_output_len": 6}', "request_output_len: unknown name, given with value 6"),
        (b'{"prompt": "a", "n": 0}', "n: given 0"),
        (b'"text"', "body: "),
    ],
)
def test_errors_of_a_returned_body_name_the_formatter(
    body: bytes, reason: str, engine: FakeEngine, text_model: TextModel
) -> None:
    app = create_app(web_config(Path("/none")), engine, text_model, ReturnsBody(body))
    reply = app.test_client().post("/invocations", json={"inputs": "Hello"})
    assert reply.status_code == 424
    assert reply.json["error"].startswith(f"the body that the input formatter returned: {reason}")


def test_errors_of_a_header_do_not_name_the_formatter(engine: FakeEngine, text_model: TextModel) -> None:
    app = create_app(web_config(Path("/none")), engine, text_model, ReturnsBody(b'{"inputs": "a"}'))
    name = "X-Amzn-SageMaker-Adapter-Identifier"
    reply = app.test_client().post("/invocations", json={"inputs": "Hello"}, headers={name: "french"})
    assert reply.json["error"].startswith(f'{name}: given "french"')


def test_a_field_of_a_returned_body_is_the_param_of_an_error(
    engine: FakeEngine, text_model: TextModel
) -> None:
    formatter = ReturnsBody(b'{"prompt": "a", "n": 0}')
    client = create_app(web_config(Path("/none")), engine, text_model, formatter).test_client()
    error = client.post("/v1/completions", json={"prompt": "Hello"}).json["error"]
    assert error["param"] == "n"
    assert error["message"].startswith("the body that the input formatter returned: n: given 0")


def test_an_input_formatter_may_return_token_ids(engine: FakeEngine, text_model: TextModel) -> None:
    ids = list(encode("one two"))
    body = {"inputs": ids, "parameters": {"details": True, "return_full_text": True}}
    app = create_app(web_config(Path("/none")), engine, text_model, ReturnsBody(json.dumps(body).encode()))
    reply = app.test_client().post("/invocations", json={"inputs": "Hello"})
    assert reply.status_code == 200, reply.text
    assert engine.requests[0].prompt_token_ids == tuple(ids)
    assert reply.json["generated_text"] == "one two" + ANSWER
    assert reply.json["details"]["inputs"] == "one two"


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [([5, "a"], 'inputs[1]: given "a"'), ([5, 10**6], "inputs[1]: given 1000000"), ([], "inputs: given []")],
)
def test_wrong_token_ids_are_refused(
    inputs: list[Any], reason: str, engine: FakeEngine, text_model: TextModel
) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    app = create_app(web_config(Path("/none")), engine, text_model, ReturnsBody(body))
    reply = app.test_client().post("/invocations", json={"inputs": "Hello"})
    assert reply.status_code == 424
    assert reason in reply.json["error"]


def test_token_ids_of_a_client_are_refused(client: FlaskClient) -> None:
    reply = client.post("/invocations", json={"inputs": [5, 6]})
    assert reply.status_code == 424
    assert reply.json["error"].startswith("inputs: given [5, 6]")
