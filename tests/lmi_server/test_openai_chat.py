"""`POST /v1/chat/completions`, and the same body on `/invocations`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import FinishReason
from lmi_server.app import create_app
from lmi_server.text.chat_template import ChatTemplate
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import refusal_of
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import MAX_MODEL_LEN, FakeEngine, chunks, encode, tokens, web_config
from tests.support.logs import Logs

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
RENDERED = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PATHS = ["/v1/chat/completions", "/invocations"]


def post(client: FlaskClient, path: str = PATHS[0], **fields: Any) -> TestResponse:
    return client.post(path, json={"messages": MESSAGES, **fields})


@pytest.mark.parametrize("path", PATHS)
def test_whole_answer(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    reply = post(client, path, model="any-name", logprobs=False)
    body = reply.get_json()
    assert reply.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "any-name"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": ANSWER},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    prompt_ids = encode(RENDERED)
    generated = len(encode(ANSWER))
    assert body["usage"] == {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": generated,
        "total_tokens": len(prompt_ids) + generated,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    request = engine.requests[0]
    assert request.prompt_token_ids == prompt_ids
    assert request.sampling.max_new_tokens == MAX_MODEL_LEN - len(prompt_ids)
    assert not request.sampling.logprobs


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("include_usage", [False, True])
def test_stream(path: str, include_usage: bool, client: FlaskClient) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    reply = post(client, path, stream=True, **options)
    assert reply.mimetype == "text/event-stream"
    records = chunks(reply)
    assert {record["object"] for record in records} == {"chat.completion.chunk"}
    assert len({record["id"] for record in records}) == 1
    assert {record["model"] for record in records} == {"lmi"}
    if include_usage:
        usage = records.pop()
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] > usage["usage"]["prompt_tokens"] > 0
        assert all(record["usage"] is None for record in records)
    else:
        assert all("usage" not in record for record in records)
    choices = [record["choices"][0] for record in records]
    assert all(choice["logprobs"] is None for choice in choices)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == ANSWER
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert all("content" in choice["delta"] for choice in choices), "some clients read it from every chunk"
    assert choices[-1]["finish_reason"] == "length"


def test_every_chunk_may_have_the_token_counts(client: FlaskClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [record["usage"] for record in chunks(post(client, stream=True, stream_options=options))]
    generated = [count["completion_tokens"] for count in counts]
    assert generated == sorted(generated)
    assert (generated[0], generated[-2:]) == (0, [len(encode(ANSWER))] * 2)
    assert all(
        count["total_tokens"] == count["prompt_tokens"] + count["completion_tokens"] for count in counts
    )


@pytest.mark.parametrize("path", PATHS)
def test_each_event_is_a_chunk_of_its_own(path: str, client: FlaskClient) -> None:
    """Some clients of SageMaker parse each part of a stream by itself."""
    events = list(post(client, path, stream=True, stream_options={"include_usage": True}).iter_encoded())
    assert all(event.startswith(b"data: ") and event.find(b"\n\n") == len(event) - 2 for event in events)
    assert events[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("logprobs", [False, True])
def test_tokens_without_visible_text_have_chunks(
    path: str, logprobs: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    """Benchmark clients take each chunk for a token."""
    text, is_chat = "one 😀 two three", "chat" in path
    engine.script = lambda request: tokens(request, encode(text))
    body: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "Hello"}
    if logprobs:
        body["logprobs"] = True if is_chat else 1
    reply = client.post(path, json={**body, "stream": True, "stop": [" two threes"]})
    choices = [record["choices"][0] for record in chunks(reply)]
    pieces = [choice["delta"]["content"] if is_chat else choice["text"] for choice in choices]
    assert len(pieces[is_chat:]) == len(encode(text))
    assert pieces.count("") >= 3
    assert "".join(pieces) == text


def test_a_chat_on_invocations_can_be_streamed_as_json_lines(client: FlaskClient) -> None:
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    for path, mimetype in (
        ("/invocations", "application/jsonlines"),
        ("/v1/chat/completions", "text/event-stream"),
    ):
        reply = client.post(path, json=body, headers={"Accept": "application/jsonlines"})
        assert reply.mimetype == mimetype
    reply = client.post("/invocations", json=body, headers={"Accept": "application/jsonlines"})
    *records, usage = map(json.loads, reply.text.splitlines())
    assert "".join(record["choices"][0]["delta"]["content"] for record in records) == ANSWER
    assert usage["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("outer", [{}, {"max_tokens": 3}])
def test_the_parameters_of_a_chat_on_invocations_may_be_an_object(
    outer: dict[str, int], client: FlaskClient, engine: FakeEngine
) -> None:
    inner = {"max_new_tokens": 2, "temperature": 0, "return_full_text": False, "unknown": 1}
    body = {"messages": MESSAGES, "parameters": inner, **outer}
    assert client.post("/invocations", json=body).status_code == 200
    [request] = engine.requests
    assert request.sampling.max_new_tokens == outer.get("max_tokens", 2)
    assert request.sampling.temperature == 0
    inner["temperature"] = 9
    assert "temperature" in client.post("/invocations", json=body).get_json()["error"]


INNER_BODIES = [{"messages": MESSAGES}, {"prompt": "Hello"}]


@pytest.mark.parametrize("body", INNER_BODIES, ids=["chat", "completion"])
def test_a_null_beside_the_parameters_of_a_chat_sets_nothing(
    body: dict[str, Any], client: FlaskClient, engine: FakeEngine
) -> None:
    inner = {"max_tokens": 2, "temperature": 0.5, "stream": True}
    outer = {"max_tokens": None, "temperature": None, "stream": None}
    reply = client.post("/invocations", json={**body, **outer, "parameters": inner})
    assert reply.mimetype == "text/event-stream"
    assert (engine.sampling.max_new_tokens, engine.sampling.temperature) == (2, 0.5)


@pytest.mark.parametrize("body", INNER_BODIES, ids=["chat", "completion"])
def test_the_parameters_of_a_chat_may_contain_stream(body: dict[str, Any], client: FlaskClient) -> None:
    def send(**fields: Any) -> TestResponse:
        return client.post("/invocations", json={**body, **fields})

    usage = {"stream_options": {"include_usage": True}}
    reply = send(parameters={"stream": True, **usage})
    assert reply.mimetype == "text/event-stream"
    assert chunks(reply)[-1]["usage"]["completion_tokens"] > 0
    assert chunks(send(parameters=usage, stream=True))[-1]["usage"]["completion_tokens"] > 0
    assert send(parameters={"stream": True}, stream=False).mimetype == "application/json"
    assert send(parameters={"stream": False}, stream=True).mimetype == "text/event-stream"
    assert "stream: given" in refusal_of(send(parameters={"stream": "yes"}))


@pytest.mark.parametrize("body", INNER_BODIES, ids=["chat", "completion"])
@pytest.mark.parametrize("name", ["guided_json", "guided_choice", "guided_later"])
def test_constraints_in_the_parameters_of_a_chat_are_refused(
    name: str, body: dict[str, Any], client: FlaskClient
) -> None:
    for fields in ({name: ["a"]}, {"parameters": {name: ["a"]}}, {name: None, "parameters": {name: ["a"]}}):
        refusal = refusal_of(client.post("/invocations", json={**body, **fields}))
        assert refusal.startswith(f"{name}: given ")
    assert client.post("/invocations", json={**body, "parameters": {name: None}}).status_code == 200


def test_a_chat_may_set_variables_of_the_template(
    model_folder: Path, engine: FakeEngine, text_model: TextModel
) -> None:
    template = ChatTemplate("{{ effort | default('any') }}:{{ messages[0].content }}", {})
    text = replace(text_model, chat_template=template)
    client = create_app(web_config(model_folder), engine, text).test_client()
    for fields, effort in (({}, "any"), ({"chat_template_kwargs": {"effort": "low", "other": False}}, "low")):
        assert post(client, **fields).status_code == 200
        assert engine.requests[-1].prompt_token_ids == encode(f"{effort}:{MESSAGES[0]['content']}")


@pytest.mark.parametrize(
    ("value", "mention"),
    [
        ([], "given []; accepted: an object of at most 16 variables"),
        ({"a": []}, "chat_template_kwargs.a: given []; accepted: a string"),
        ({"messages": []}, "given the name 'messages'; accepted: names of lower-case letters"),
        ({"A b": 1}, "given the name 'A b'"),
        ({"eos_token": "x"}, "other than special tokens"),
        ({"x": "y" * 5000}, "a string of at most 4096 characters"),
    ],
)
def test_other_variables_of_the_template_are_refused(value: Any, mention: str, client: FlaskClient) -> None:
    assert mention in post(client, chat_template_kwargs=value).get_json()["error"]["message"]


def test_finish_reason_is_stop_for_an_eos_token(client: FlaskClient, engine: FakeEngine) -> None:
    ids = encode("done.")
    engine.script = lambda request: tokens(request, [*ids, 2], FinishReason.EOS_TOKEN)
    choice = post(client).get_json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "done."


def test_text_parts_and_developer_role(client: FlaskClient, engine: FakeEngine) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]
    assert client.post(PATHS[0], json={"messages": messages}).status_code == 200
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert engine.requests[0].prompt_token_ids == encode(rendered)


PARTS_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{{ message.reasoning_content | default('-') }}:"
    "{% for part in message.content %}{{ part.text }}|{% endfor %}{% endfor %}"
)


@pytest.fixture
def parts_client(model_folder: Path, engine: FakeEngine, text_model: TextModel) -> FlaskClient:
    """A client of a model whose chat template reads a list of parts, and `reasoning_content`."""
    text = replace(text_model, chat_template=ChatTemplate(PARTS_TEMPLATE, {}))
    return create_app(web_config(model_folder), engine, text).test_client()


@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        ({"role": "user", "content": "one"}, "user:-:one|"),
        ({"role": "user", "content": [{"type": "text", "text": "one"}]}, "user:-:one|"),
        (
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            "user:-:one|two|",
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, "assistant:-:|"),
        ({"role": "assistant", "content": []}, "assistant:-:|"),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot"}]},
            "assistant:-:I cannot|",
        ),
        ({"role": "assistant", "content": "4", "reasoning_content": "2+2"}, "assistant:2+2:4|"),
        ({"role": "assistant", "content": "4", "reasoning_content": None}, "assistant:-:4|"),
        ({"role": "user", "content": "4", "reasoning_content": 5}, "user:-:4|"),
    ],
)
def test_messages_as_the_template_gets_them(
    message: dict[str, Any], rendered: str, parts_client: FlaskClient, engine: FakeEngine
) -> None:
    reply = parts_client.post(PATHS[0], json={"messages": [message]})
    assert reply.status_code == 200, reply.text
    assert engine.requests[0].prompt_token_ids == encode(rendered)


def test_refused_answers_in_the_history(client: FlaskClient, engine: FakeEngine) -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot"}]}
    messages = [*MESSAGES, refusal, {"role": "assistant", "content": None, "refusal": "no"}]
    assert client.post(PATHS[0], json={"messages": messages}).status_code == 200
    history = "<|im_start|>assistant\nI cannot<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    generation = "<|im_start|>assistant\n"
    assert engine.requests[0].prompt_token_ids == encode(
        RENDERED.removesuffix(generation) + history + generation
    )


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, "messages[0].content[0].type"),
        (
            {"role": "assistant", "content": [{"type": "refusal", "text": "no"}]},
            "messages[0].content[0].refusal",
        ),
        ({"role": "assistant", "content": [{"type": ["text"]}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": "4", "reasoning_content": 5}, "messages[0].reasoning_content"),
    ],
)
def test_invalid_contents_are_refused(message: dict[str, Any], field: str, client: FlaskClient) -> None:
    reply = client.post(PATHS[0], json={"messages": [message]})
    assert reply.status_code == 400
    assert reply.get_json()["error"]["message"].startswith((f"{field}: given ", f"{field}: missing"))


def test_unknown_fields_are_ignored_and_logged(client: FlaskClient, logs: Logs) -> None:
    assert post(client, my_extra=[1, 2]).status_code == 200
    options = {"include_usage": True, "include_obfuscation": True}
    assert post(client, stream=True, stream_options=options).status_code == 200
    assert "my_extra" in logs.text
    assert "stream_options.include_obfuscation" in logs.text
    assert "include_usage" not in logs.text
