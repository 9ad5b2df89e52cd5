"""curl against a live server: every route, and every curl line of the README as it stands there."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.paths import REPO_ROOT
from tests.support.server import ADMIN_TOKEN, Server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here"),
]

README_ADDRESS = "http://127.0.0.1:8080"
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


def check(text: str) -> None:
    """An answer of ours, whole or streamed, that holds generated text and no error."""
    if text.startswith("data: "):
        *records, last = events(text)
        assert last == "[DONE]" or "generated_text" in json.loads(last)
        found = [json.loads(record) for record in records]
    else:
        found = [json.loads(line) for line in text.splitlines()]
    assert found
    assert '"error"' not in text
    assert any(word in text for word in ("generated_text", "choices", '"object":"list"', "Healthy"))


def readme_lines() -> list[str]:
    """The README's curl commands, their continued lines joined; each may span lines in single quotes too."""
    text = (REPO_ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith("curl ")]


def test_the_readme_has_curl_lines() -> None:
    assert len(readme_lines()) >= 3


@pytest.mark.parametrize("line", readme_lines())
def test_a_line_of_the_readme(line: str, paged_server: Server) -> None:
    command, *arguments = shlex.split(line)
    assert command == "curl"
    assert any(README_ADDRESS in argument for argument in arguments)
    arguments = [
        argument.replace(README_ADDRESS, paged_server.base_url).replace("$LMI_ADMIN_TOKEN", ADMIN_TOKEN)
        for argument in arguments
    ]
    if any("/admin/" in argument for argument in arguments):
        _check_admin_line(arguments, f"{paged_server.base_url}/admin/scheduler")
        return
    text = curl(*arguments)
    if not any(argument.endswith("/metrics") for argument in arguments):
        check(text)


def _check_admin_line(arguments: list[str], url: str) -> None:
    """What it asks for is in force then; the server is left as it was, for others use it too."""
    token = ["-H", f"Authorization: Bearer {ADMIN_TOKEN}"]
    before = json.loads(curl("-s", url, *token))
    try:
        after = json.loads(curl(*arguments))
        asked = json.loads(arguments[arguments.index("-d") + 1])
        assert after == {**before, **asked} != before
    finally:
        curl("-s", "-X", "PATCH", url, *token, *JSON, "-d", json.dumps(before))


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
