"""Malformed bodies are refused with field, value and limit, and the next valid requests succeed."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.lmi_server.bodies import BODIES, error_of, post
from tests.lmi_server.fakes import FakeEngine
from tests.lmi_server.malformed_bodies import BODIES as MALFORMED
from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS, INVOCATIONS, Malformed


def error_text(reply: TestResponse, path: str) -> str:
    """Check the error format of the path. Returns the message."""
    body = reply.get_json()
    if path == INVOCATIONS:
        assert set(body) == {"error", "code"}
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == "invalid_request_error"
    return error_of(reply)


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
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
    for path in BODIES:
        assert post(client, path).status_code == 200


def test_openai_errors_have_the_field_and_a_code(client: FlaskClient) -> None:
    error = post(client, CHAT, temperature=9).get_json()["error"]
    assert (error["param"], error["code"]) == ("temperature", "invalid_request")


@pytest.mark.parametrize("num_words", [2_000, 200_000])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_clients_recognize_that_the_context_is_exceeded(
    client: FlaskClient, path: str, num_words: int
) -> None:
    """LiteLLM and others search for these words."""
    text = "word " * num_words
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    error = client.post(path, json=body).get_json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "this model's maximum context length is" in error["message"].lower()
