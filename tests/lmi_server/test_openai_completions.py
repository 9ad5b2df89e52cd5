"""`POST /v1/completions`, and the same body on `/invocations`."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import FinishReason, Request, RequestOutput
from engines.errors import RequestFailed
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import PROMPT
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, chunks, encode, tokens

PROMPTS = ["one two three", "four five", "six"]
PATHS = ["/v1/completions", "/invocations"]


def post(client: FlaskClient, prompt: Any = PROMPT, path: str = PATHS[0], **fields: Any) -> TestResponse:
    return client.post(path, json={"prompt": prompt, **fields})


def texts(records: list[dict[str, Any]]) -> dict[int, str]:
    """Return the text of each choice of a stream, by index."""
    joined: dict[int, str] = {}
    for choice in (choice for record in records for choice in record["choices"]):
        joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


@pytest.mark.parametrize("path", PATHS)
def test_whole_answer(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    reply = post(client, path=path, model="any-name")
    body = reply.get_json()
    assert reply.status_code == 200
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "any-name"
    choice = {"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "length"}
    assert body["choices"] == [choice]
    num_prompt, generated = len(encode(PROMPT)), len(encode(ANSWER))
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": generated,
        "total_tokens": num_prompt + generated,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    request = engine.requests[0]
    assert request.prompt_token_ids == encode(PROMPT)
    assert request.sampling.max_new_tokens == 16
    assert request.sampling.temperature == (1.0 if path == PATHS[0] else 0.0)
    assert not request.sampling.logprobs


@pytest.mark.parametrize("path", PATHS)
def test_stream(path: str, client: FlaskClient) -> None:
    reply = post(client, path=path, stream=True, stream_options={"include_usage": True})
    assert reply.mimetype == "text/event-stream"
    *records, usage = chunks(reply)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    assert {record["object"] for record in records} == {"text_completion"}
    assert len({record["id"] for record in records}) == 1
    assert len(records) > 3
    assert texts(records) == {0: ANSWER}
    reasons = [record["choices"][0]["finish_reason"] for record in records]
    assert reasons == [None] * (len(records) - 1) + ["length"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_each_prompt_has_its_own_choice(as_ids: bool, client: FlaskClient, echoing: FakeEngine) -> None:
    ids = [list(encode(prompt)) for prompt in PROMPTS]
    body = post(client, ids if as_ids else PROMPTS).get_json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == list(enumerate(PROMPTS))
    assert echoing.submissions == [3]
    assert [list(request.prompt_token_ids) for request in echoing.requests] == ids
    total = sum(map(len, ids))
    assert body["usage"] == {
        "prompt_tokens": total,
        "completion_tokens": total,
        "total_tokens": 2 * total,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_valid_token_ids_are_checked_without_a_call_for_each(client: FlaskClient, engine: FakeEngine) -> None:
    calls: list[str] = []

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(record)
    try:
        reply = post(client, [1] * 200, max_tokens=1)
    finally:
        sys.setprofile(None)
    assert reply.status_code == 200
    assert [request.prompt_token_ids for request in engine.requests] == [(1,) * 200]
    assert calls.count("check_token_ids") == 1
    assert "check_token_id" not in calls


def test_streamed_choices_are_interleaved(client: FlaskClient, echoing: FakeEngine) -> None:
    records = chunks(post(client, PROMPTS, stream=True, stream_options={"include_usage": True}))
    usage = records.pop()["usage"]
    assert usage["completion_tokens"] == usage["prompt_tokens"] > 3
    assert texts(records) == dict(enumerate(PROMPTS))
    choices = [record["choices"][0] for record in records]
    assert [choice["index"] for choice in choices[:3]] == [0, 1, 2]
    assert sorted(c["index"] for c in choices if c["finish_reason"]) == [0, 1, 2]


def test_a_waiting_prompt_does_not_block_the_others(client: FlaskClient, engine: FakeEngine) -> None:
    gate = threading.Event()
    slow = encode(PROMPTS[0])

    def script(request: Request) -> list[RequestOutput | threading.Event]:
        outputs: list[RequestOutput | threading.Event] = list(tokens(request, encode("one two")))
        return [gate, *outputs] if request.prompt_token_ids == slow else outputs

    engine.script = script
    reply = post(client, PROMPTS[:2], stream=True)
    seen = ""
    for chunk in reply.iter_encoded():
        seen += chunk.decode()
        if '"finish_reason":"length"' in seen:
            gate.set()
    assert seen.index('"index":0') > seen.index('"finish_reason":"length"')
    assert seen.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_echo(stream: bool, as_ids: bool, client: FlaskClient) -> None:
    prompt: Any = [list(encode(text)) for text in PROMPTS] if as_ids else PROMPTS
    reply = post(client, prompt, echo=True, stream=stream)
    if stream:
        got = texts(chunks(reply))
    else:
        got = {choice["index"]: choice["text"] for choice in reply.get_json()["choices"]}
    assert got == {index: text + ANSWER for index, text in enumerate(PROMPTS)}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_echo_without_an_output_scores_the_prompt(
    path: str, stream: bool, logprobs: int | None, client: FlaskClient, engine: FakeEngine
) -> None:
    engine.script = lambda request: tokens(request, [2], FinishReason.EOS_TOKEN)
    fields: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    reply = post(
        client, PROMPTS, path, echo=True, max_tokens=0, n=2, logprobs=logprobs, stream=stream, **fields
    )
    assert reply.status_code == 200
    assert [request.sampling.max_new_tokens for request in engine.requests] == [1] * 6
    records = chunks(reply) if stream else [reply.get_json()]
    usage = records[-1]["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"] == sum(len(encode(text)) for text in PROMPTS)
    assert texts(records) == {index: PROMPTS[index // 2] for index in range(6)}
    choices = [choice for record in records for choice in record["choices"]]
    reasons = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert sorted(reasons) == [(index, "length") for index in range(6)]
    for index in range(6):
        lists = [c["logprobs"] for c in choices if c["index"] == index and c["logprobs"] is not None]
        tokens_ = [token for one in lists for token in one["tokens"]]
        assert "".join(tokens_) == (PROMPTS[index // 2] if logprobs else "")


def test_stop_strings_apply_to_each_choice_separately(client: FlaskClient, engine: FakeEngine) -> None:
    def script(request: Request) -> list[RequestOutput]:
        first = request.prompt_token_ids == encode(PROMPTS[0])
        return tokens(request, encode("one stop two three" if first else "four five six"))

    engine.script = script
    for stream in (False, True):
        reply = post(client, PROMPTS[:2], stop=" stop", stream=stream)
        choices = [r["choices"][0] for r in chunks(reply)] if stream else reply.get_json()["choices"]
        joined = texts([{"choices": choices}])
        assert joined == {0: "one", 1: "four five six"}
        assert {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]} == {
            0: "stop",
            1: "length",
        }
        assert engine.requests[-2].id in engine.aborted
        assert engine.requests[-1].id not in engine.aborted


@pytest.mark.parametrize(("path", "error_field"), list(zip(PATHS, ['"message":', '"code":424'], strict=True)))
def test_a_failed_stream_does_not_end_with_done(
    path: str, error_field: str, client: FlaskClient, engine: FakeEngine
) -> None:
    def script(request: Request) -> list[RequestOutput]:
        first = request.prompt_token_ids == encode(PROMPTS[0])
        error = RequestFailed("the step failed") if first else None
        return tokens(request, encode("one two three four"), error or FinishReason.LENGTH)

    engine.script = script
    reply = post(client, PROMPTS, path=path, stream=True)
    assert reply.status_code == 200
    assert "prompt[0]: the step failed" in reply.text.rstrip().rsplit("data: ", 1)[1]
    assert error_field in reply.text.rstrip().rsplit("data: ", 1)[1]
    assert "[DONE]" not in reply.text


def test_token_ids_must_be_in_the_vocabulary(client: FlaskClient, text_model: TextModel) -> None:
    size = text_model.vocabulary_size
    assert post(client, [0, size - 1]).status_code == 200
    error = post(client, [0, size]).get_json()["error"]
    assert error["param"] == "prompt[1]"
    assert f"given {size}; accepted: a token id from 0 to {size - 1}" in error["message"]


def test_each_of_many_stop_strings_ends_the_text(client: FlaskClient) -> None:
    """Code completion sends a language's keywords besides its own stop strings."""
    stops = [f"keyword {number}" for number in range(63)]
    body = {"prompt": PROMPT, "stop": [*stops, " France"]}
    (choice,) = client.post("/v1/completions", json=body).get_json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("The capital of", "stop")
