"""curl against a live server, on every route. tests/docs runs the lines of the documentation."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.server import Server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here"),
]

JSON = ["-H", "Content-Type: application/json"]


def curl(*arguments: str) -> str:
    """What the server says. `-f` makes an error status an error of curl's."""
    done = subprocess.run(
        ["curl", "-fsSN", "--max-time", "60", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def post(server: Server, path: str, body: Any, *more: str) -> str:
    return curl(f"{server.base_url}{path}", *JSON, "-d", json.dumps(body), *more)


def events(text: str) -> list[str]:
    """The blocks of a stream of server-sent events."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    return [block.removeprefix("data: ") for block in blocks]


@pytest.mark.parametrize("path", ["/invocations", "/predictions/any-model", "/predictions/any-model/v1"])
def test_lmi_whole_and_streamed(path: str, paged_server: Server) -> None:
    body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 6}}
    whole = json.loads(post(paged_server, path, body))
    assert list(whole) == ["generated_text"]
    lines = [json.loads(line) for line in post(paged_server, path, {**body, "stream": True}).splitlines()]
    assert len(lines) == 6
    assert lines[-1]["generated_text"] == whole["generated_text"]
    sse = events(post(paged_server, path, body, "-H", "Accept: text/event-stream"))
    assert json.loads(sse[-1])["generated_text"] == whole["generated_text"]


def test_openai_whole_and_streamed(paged_server: Server) -> None:
    for path, prompt, piece in (
        ("/v1/completions", {"prompt": "The capital of France is"}, lambda choice: choice["text"]),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
            lambda choice: choice.get("message", choice.get("delta", {})).get("content", ""),
        ),
    ):
        body = {**prompt, "temperature": 0, "max_tokens": 8}
        whole = json.loads(post(paged_server, path, body))
        assert "Paris" in piece(whole["choices"][0])
        *records, done = events(post(paged_server, path, {**body, "stream": True}))
        assert done == "[DONE]"
        pieces = [piece(json.loads(record)["choices"][0]) for record in records]
        assert "".join(pieces) == piece(whole["choices"][0])
        assert len(pieces) > 4


def test_health_metrics_and_models(paged_server: Server) -> None:
    assert json.loads(curl(f"{paged_server.base_url}/ping")) == {"status": "Healthy"}
    metrics = curl(f"{paged_server.base_url}/metrics")
    assert "# TYPE lmi_tokens_generated_total counter" in metrics
    assert json.loads(curl(f"{paged_server.base_url}/v1/models"))["data"][0]["id"] == "lmi"


def test_what_curl_says_of_a_refusal(paged_server: Server) -> None:
    arguments = ["curl", "-s", "-w", "%{http_code}", f"{paged_server.base_url}/invocations", *JSON]
    done = subprocess.run(
        [*arguments, "-d", '{"input": "Hello"}'], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("\n424")
    assert json.loads(done.stdout.removesuffix("424")) == {
        "error": "input: unknown name, given with value \"Hello\"; did you mean 'inputs'?",
        "code": 424,
    }
