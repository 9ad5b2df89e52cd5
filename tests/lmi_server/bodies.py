"""Valid bodies of each path, and what clients read from the replies."""

from __future__ import annotations

from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS, INVOCATIONS

PROMPT = "What is the capital of France?"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}]},
    COMPLETIONS: {"prompt": PROMPT},
    INVOCATIONS: {"inputs": PROMPT},
}


def post(client: FlaskClient, path: str, **parameters: Any) -> TestResponse:
    """Send a request. On `/invocations`, the parameters are an object of their own, which may contain `stream`."""
    own = {"parameters": parameters} if path == INVOCATIONS else parameters
    return client.post(path, json={**BODIES[path], **own})


def text_of(reply: TestResponse) -> str:
    body = reply.get_json()
    if "generated_text" in body:
        return str(body["generated_text"])
    choice = body["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def error_of(reply: TestResponse) -> str:
    """Return the message of an error, whose format depends on the path."""
    body = reply.get_json()
    if reply.request.path.startswith("/v1/"):
        return str(body["error"]["message"])
    assert body["code"] == reply.status_code
    return str(body["error"])


def refusal_of(reply: TestResponse) -> str:
    """Return the message of the error for an invalid request."""
    assert reply.status_code == (400 if reply.request.path.startswith("/v1/") else 424), reply.text
    return error_of(reply)
