"""Malformed bodies are refused with field, value and limit, and the next valid requests succeed."""

from __future__ import annotations

import json

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.lmi_server.fakes import FakeEngine
from tests.lmi_server.malformed_bodies import BODIES, CHAT, COMPLETIONS, GOOD, INVOCATIONS, Malformed


def error_text(reply: TestResponse, path: str) -> str:
    """Check the error format of the path. Returns the message."""
    body = json.loads(reply.data)
    if path == INVOCATIONS:
        assert set(body) == {"error", "code"}
        assert body["code"] == reply.status_code
        text = body["error"]
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == "invalid_request_error"
        text = body["error"]["message"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("case", BODIES, ids=lambda case: case.name)
def test_a_malformed_body_is_refused_and_the_next_requests_succeed(
    case: Malformed, client: FlaskClient, engine: FakeEngine
) -> None:
    reply = client.post(case.path, data=case.body, content_type=case.content_type)
    assert reply.status_code == case.status, reply.text
    text = error_text(reply, case.path)
    for mention in case.mentions:
        assert mention in text
    assert len(text) < 2000
    assert engine.requests == []
    for path, body in GOOD:
        assert client.post(path, data=body, content_type="application/json").status_code == 200


def test_malformed_bodies_cover_all_paths_with_unique_names() -> None:
    assert len(BODIES) >= 60
    assert len({case.name for case in BODIES}) == len(BODIES)
    assert {case.path for case in BODIES} == {INVOCATIONS, CHAT, COMPLETIONS}


def test_openai_param_names_the_field(client: FlaskClient) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 9}
    error = client.post(CHAT, json=body).get_json()["error"]
    assert error["param"] == "temperature"
    assert error["code"] == "invalid_request"


def test_a_prompt_that_is_too_long_has_openais_code(client: FlaskClient) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 2000}]}
    assert client.post(CHAT, json=body).get_json()["error"]["code"] == "context_length_exceeded"
