"""Formatter calls are aborted when they time out or the client disconnects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.base import HandlerEngine
from engines.core import AbortReason
from engines.errors import DeadlineExceeded
from engines.invocations import Invocation
from lmi_server.app import create_app
from lmi_server.generation.formatter import Formatter
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import ANSWER, Connection
from tests.lmi_server.fakes import FakeEngine, encode, web_config


class SilentEngine(HandlerEngine):
    """Never answers. Records the ids of all calls and of aborted calls."""

    def __init__(self, on_call: Callable[[], None] = lambda: None) -> None:
        self.calls: list[str] = []
        self.aborted: list[str] = []
        self._on_call = on_call

    def invoke(self, invocation: Invocation) -> Any:
        self.calls.append(invocation.id)
        self._on_call()
        return SimpleNamespace(next=lambda timeout: None)

    def abort(self, request_id: str, reason: AbortReason) -> None:
        self.aborted.append(request_id)


def test_a_call_that_times_out_is_aborted() -> None:
    engine = SilentEngine()
    formatter = Formatter(engine, ("input_formatter",), timeout=0)
    with pytest.raises(DeadlineExceeded, match="the input formatter took longer than 0 s"):
        formatter.rewrite_request(bytearray(b"{}"), {}, ClientWatch(None))
    assert len(engine.calls) == 1
    assert engine.aborted == engine.calls


@pytest.mark.parametrize("role", ["input_formatter", "output_formatter"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_aborted_when_the_client_disconnects(
    role: str, stream: bool, connection: Connection, engine: FakeEngine, text_model: TextModel
) -> None:
    server, peer = connection
    formatter_engine = SilentEngine(on_call=peer.close)
    app = create_app(web_config(Path("/none")), engine, text_model, Formatter(formatter_engine, (role,), 60))
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
        super().__init__(SilentEngine(), ("input_formatter",), timeout=60)
        self._body = body

    def _call(self, stage: str, data: bytes, headers: Mapping[str, str], client: ClientWatch) -> bytearray:
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
