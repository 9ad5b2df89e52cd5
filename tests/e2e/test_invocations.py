"""`/invocations` over real HTTP: whole responses, streams, EOS, errors. `tests/lmi_server` covers every variant."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Answer, Client
from tests.support.metrics import wait_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
STORY = "Once upon a time,"


def invoke(
    client: Client, inputs: str = STORY, *, headers: dict[str, str] | None = None, **body: object
) -> Answer:
    return client.post("/invocations", {"inputs": inputs, **body}, headers)


def records(answer: Answer) -> list[dict[str, object]]:
    """Return the records of a jsonlines response. Every line must end with a newline."""
    assert answer.body.endswith("\n")
    return [json.loads(line) for line in answer.body.removesuffix("\n").split("\n")]


def test_a_stream_is_json_lines_and_ends_with_the_whole_text(client: Client) -> None:
    parameters = {"max_new_tokens": 10, "details": True}
    whole = invoke(client, parameters=parameters).json()
    answer = invoke(client, parameters=parameters, stream=True)
    assert answer.headers["content-type"].startswith("application/jsonlines")
    *_, last = streamed = records(answer)
    assert [record["token"]["id"] for record in streamed] == [t["id"] for t in whole["details"]["tokens"]]  # type: ignore[index]
    assert all("generated_text" not in record for record in streamed[:-1])
    assert last["generated_text"] == whole["generated_text"]
    assert last["details"]["finish_reason"] == "length"  # type: ignore[index]


def test_a_stream_is_sent_token_by_token(client: Client) -> None:
    """The first record arrives long before the engine generates the last token."""
    before = client.metrics()["lmi_tokens_generated_total"]
    # Too many to wait for: the client disconnects.
    parameters = {"max_new_tokens": 3000, "ignore_eos_token": True}
    with client.call(
        "POST", "/invocations", {"inputs": STORY, "stream": True, "parameters": parameters}
    ) as call:
        lines = call.lines()
        next(lines)
        generated = client.metrics()["lmi_tokens_generated_total"] - before
        rest = list(islice(lines, 30))
    assert generated < 1500
    assert len(rest) == 30
    assert wait_metrics(client, lambda seen: seen.idle, SECONDS).idle


def test_eos_ends_generation_and_can_be_ignored(client: Client) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ended = client.generate(prompt, max_new_tokens=40)
    assert ended.finish_reason == "eos_token"
    assert "Paris" in ended.text
    ignored = client.generate(prompt, max_new_tokens=20, ignore_eos_token=True)
    assert ignored.finish_reason == "length"
    assert len(ignored.token_ids) == 20


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{not json", ["JSON"]),
        ({"inputs": "x", "parameters": {"max_new_token": 4}}, ["max_new_token", "max_new_tokens"]),
        ({"inputs": "word " * 9000}, ["inputs", "8192"]),
    ],
)
def test_a_bad_body_returns_424_and_names_the_problem(client: Client, body: object, words: list[str]) -> None:
    answer = client.post("/invocations", body)
    assert answer.status == 424
    assert answer.json()["code"] == 424
    for word in words:
        assert word in answer.json()["error"]
