"""`POST /predictions/{model}` and `/models/{model}/invoke`: other paths of `/invocations`."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


@pytest.mark.parametrize(
    "path",
    ["/predictions/test", "/predictions/a_model-7.1/v2", "/predictions/org/model", "/models/test/invoke"],
)
def test_predictions_behave_like_invocations(path: str, client: FlaskClient) -> None:
    reply = client.post(path, json={"inputs": "Hello"}, headers={ATTRIBUTES: "a=b"})
    assert reply.status_code == 200
    assert reply.get_json() == {"generated_text": ANSWER}
    assert reply.headers[ATTRIBUTES] == "a=b"
    stream = client.post(path, json={"inputs": "Hello", "stream": True})
    assert stream.mimetype == "application/jsonlines"
    chat = client.post(path, json={"messages": [{"role": "user", "content": "Hi"}]})
    assert chat.get_json()["object"] == "chat.completion"
    refused = client.post(path, json={"inputs": 5})
    assert refused.status_code == refused.get_json()["code"] == 424


@pytest.mark.parametrize(
    ("path", "mention"),
    [
        ("/predictions/a%20b", "a b"),
        ("/predictions/..", "model"),
        ("/models/a%20b/invoke", "a b"),
        ("/predictions/" + "x" * 129, "model"),
        ("/predictions/good/%0abad", "version"),
        ("/predictions/", "path"),
        ("/predictions/a/b/c", "path"),
    ],
)
def test_invalid_names_are_not_found(
    path: str, mention: str, client: FlaskClient, engine: FakeEngine
) -> None:
    reply = client.post(path, json={"inputs": "Hello"})
    assert reply.status_code == 404
    assert reply.get_json()["code"] == 404
    assert mention in reply.get_json()["error"]
    assert engine.requests == []
