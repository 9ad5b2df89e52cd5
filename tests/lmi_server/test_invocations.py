"""`POST /invocations` in LMI's schema: whole answers and streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import AbortReason, FinishReason, RequestOutput
from engines.errors import RequestFailed
from lmi_server.config import ServerConfig
from tests.lmi_server.bodies import BODIES, PROMPT, refusal_of
from tests.lmi_server.conftest import ANSWER, MakeClient
from tests.lmi_server.fakes import MAX_MODEL_LEN, FakeEngine, encode, says, tokens, turns_of_another_greenlet


def post(client: FlaskClient, parameters: dict[str, Any] | None = None, **fields: Any) -> TestResponse:
    body = {"inputs": PROMPT, **({"parameters": parameters} if parameters else {}), **fields}
    return client.post("/invocations", json=body)


def records(reply: TestResponse) -> list[dict[str, Any]]:
    assert reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.splitlines()]


def test_a_whole_answer_is_one_object(client: FlaskClient, engine: FakeEngine) -> None:
    reply = post(client)
    assert reply.status_code == 200
    assert reply.content_type == "application/json"
    assert json.loads(reply.data) == {"generated_text": ANSWER}
    request = engine.requests[0]
    assert request.prompt_token_ids == encode(PROMPT)
    assert request.sampling.max_new_tokens == 30
    assert request.sampling.greedy
    assert request.sampling.stop_token_ids == (2, 0)
    assert not request.sampling.logprobs


def test_details(client: FlaskClient, engine: FakeEngine) -> None:
    ids = encode(ANSWER)
    engine.script = lambda request: tokens(request, [*ids, 2], FinishReason.EOS_TOKEN)
    body = post(client, {"details": True}).get_json()
    details = body["details"]
    assert body["generated_text"] == ANSWER
    assert details["finish_reason"] == "eos_token"
    assert details["generated_tokens"] == len(ids) + 1
    assert details["inputs"] == PROMPT
    assert [token["id"] for token in details["tokens"]] == [*ids, 2]
    assert "".join(token["text"] for token in details["tokens"]) == ANSWER
    assert {token["log_prob"] for token in details["tokens"]} == {-0.5}
    assert details["tokens"][-1] == {"id": 2, "text": "", "log_prob": -0.5, "special_token": True}


@pytest.mark.parametrize("per_step", [1, 3])
def test_stream_of_json_lines(per_step: int, client: FlaskClient, engine: FakeEngine) -> None:
    engine.script = says(ANSWER, per_step=per_step)
    reply = post(client, {"details": True}, stream=True)
    assert reply.status_code == 200
    assert reply.content_type == "application/jsonlines"
    assert reply.headers["X-Accel-Buffering"] == "no"
    lines = records(reply)
    assert [line["token"]["id"] for line in lines] == list(encode(ANSWER))
    assert "".join(line["token"]["text"] for line in lines) == ANSWER
    assert all(line["token"]["log_prob"] == -0.5 for line in lines)
    assert all(set(line) == {"token"} for line in lines[:-1])
    assert lines[-1]["generated_text"] == ANSWER
    assert lines[-1]["details"] == {
        "finish_reason": "length",
        "generated_tokens": len(lines),
        "inputs": PROMPT,
    }
    assert engine.requests[0].sampling.logprobs


@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize("body", [{"inputs": PROMPT}, {"messages": [{"role": "user", "content": PROMPT}]}])
def test_each_json_line_is_a_chunk_of_its_own(
    body: dict[str, Any], per_step: int, client: FlaskClient, engine: FakeEngine
) -> None:
    """Some clients of SageMaker parse each part of a stream by itself."""
    engine.script = lambda request: tokens(
        request, encode(ANSWER), RequestFailed("it broke"), per_step=per_step
    )
    headers = {"Accept": "application/jsonlines"}
    reply = client.post("/invocations", json={**body, "stream": True}, headers=headers)
    lines = list(reply.iter_encoded())
    assert len(lines) > 3
    assert all(line.find(b"\n") == len(line) - 1 for line in lines)
    assert ["error" in json.loads(line) for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_long_backlog_is_sent_while_other_greenlets_run(client: FlaskClient, engine: FakeEngine) -> None:
    """Outputs pile up while a slow client does not read."""
    ids = encode(ANSWER) * 600
    engine.script = lambda request: tokens(request, ids)
    reply = post(client, {"details": True}, stream=True)
    with turns_of_another_greenlet() as turns:
        chunks = list(reply.iter_encoded())
    assert [json.loads(chunk)["token"]["id"] for chunk in chunks] == list(ids)
    assert len(turns) > 20


def test_available_tokens_are_sent_before_an_error(client: FlaskClient, engine: FakeEngine) -> None:
    ids = encode(ANSWER)
    engine.script = lambda request: tokens(request, ids, RequestFailed("it broke"))
    *lines, last = records(post(client, stream=True))
    assert [line["token"]["id"] for line in lines] == list(ids)
    assert last == {"error": "it broke", "code": 424}


def test_a_stream_can_finish_without_a_token(client: FlaskClient, engine: FakeEngine) -> None:
    ids = encode(ANSWER)
    engine.script = lambda request: [
        *tokens(request, ids, None),
        RequestOutput(request.id, finish_reason=FinishReason.EOS_TOKEN),
    ]
    lines = records(post(client, stream=True))
    assert lines[-1]["generated_text"] == ANSWER
    assert lines[-1]["token"]["text"] == ""


@pytest.mark.parametrize(
    ("option", "accept", "formatter", "stream", "content_type"),
    [
        (None, None, None, None, "application/json"),
        (None, "application/json", None, True, "application/jsonlines"),
        (None, "application/jsonlines", None, None, "application/jsonlines"),
        (None, "text/event-stream", None, None, "text/event-stream"),
        (None, "text/event-stream", None, True, "text/event-stream"),
        (None, "text/event-stream;charset=UTF-8", None, None, "text/event-stream"),
        (None, "Text/Event-Stream", None, None, "text/event-stream"),
        (None, "application/jsonlines;v=1", None, None, "application/jsonlines"),
        (None, "text/event-stream;q=0", None, None, "application/json"),
        (None, None, "sse", None, "text/event-stream"),
        (None, "*/*", None, False, "application/json"),
        (None, "text/event-stream", None, False, "application/json"),
        (None, "application/jsonlines", None, False, "application/json"),
        (None, "text/event-stream", "jsonlines", False, "application/jsonlines"),
        ("json", None, None, True, "application/jsonlines"),
        ("jsonlines", None, None, None, "application/jsonlines"),
        ("jsonlines", "application/json", None, None, "application/jsonlines"),
        ("sse", None, None, True, "text/event-stream"),
        ("sse", None, "json", None, "application/json"),
    ],
)
def test_content_type_of_the_answer(
    make_client: MakeClient,
    option: str | None,
    accept: str | None,
    formatter: str | None,
    stream: bool | None,
    content_type: str,
) -> None:
    body: dict[str, Any] = {"inputs": PROMPT, "stream": stream, "parameters": {"output_formatter": formatter}}
    headers = {} if accept is None else {"Accept": accept}
    reply = make_client(ServerConfig(output_formatter=option)).post(
        "/invocations", json=body, headers=headers
    )
    assert reply.mimetype == content_type
    assert ANSWER in reply.text


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("accept", ["application/jsonlines", "text/event-stream"])
def test_line_separators_in_an_answer_do_not_split_the_lines_of_its_stream(
    path: str, accept: str, client: FlaskClient, engine: FakeEngine
) -> None:
    answer = "".join(f"one{chr(code)}two " for code in (0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029))
    engine.script = says(answer)
    reply = client.post(path, json={**BODIES[path], "stream": True}, headers={"Accept": accept})
    data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert data == [line.removeprefix("data: ") for line in reply.text.split("\n") if line]
    found = [json.loads(line) for line in data if line != "[DONE]"]
    if path == "/invocations":
        assert "".join(record["token"]["text"] for record in found) == answer
        assert json.loads(post(client).text.splitlines()[0]) == {"generated_text": answer}
    else:
        choices = [record["choices"][0] for record in found]
        texts = [
            choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices
        ]
        assert "".join(texts) == answer


def test_sagemakers_streaming_call_streams(client: FlaskClient, make_client: MakeClient) -> None:
    headers = {"X-Amzn-SageMaker-Forwarded-Api": "InvokeEndpointWithResponseStream"}
    for fields, mimetype in (
        ({}, "application/jsonlines"),
        ({"stream": False}, "application/json"),
        ({"parameters": {"stream": False}}, "application/json"),
        ({"parameters": {"output_formatter": "json"}}, "application/json"),
        ({"parameters": {"output_formatter": "sse"}}, "text/event-stream"),
    ):
        reply = client.post("/invocations", json={"inputs": PROMPT, **fields}, headers=headers)
        assert reply.mimetype == mimetype
    whole = make_client(ServerConfig(output_formatter="json"))
    reply = whole.post("/invocations", json={"inputs": PROMPT}, headers=headers)
    assert reply.mimetype == "application/json"


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": PROMPT, "parameters": {"details": True, "decoder_input_details": True}},
        {"inputs": PROMPT, "parameters": {"prompt_logprobs": 1}},
        {"inputs": PROMPT, "parameters": {"n": 2}},
        {"inputs": PROMPT, "parameters": {"best_of": 2}},
        {"inputs": PROMPT, "parameters": {"num_beams": 2}},
        {"inputs": [PROMPT, PROMPT]},
        {"prompt": PROMPT, "best_of": 2},
    ],
)
def test_sagemakers_streaming_call_gets_a_whole_answer_that_cannot_be_streamed(
    body: dict[str, Any], make_client: MakeClient
) -> None:
    client = make_client(engine_kind="Python" if isinstance(body.get("inputs"), list) else "MPI")
    headers = {"X-Amzn-SageMaker-Forwarded-Api": "InvokeEndpointWithResponseStream"}
    reply = client.post("/invocations", json=body, headers=headers)
    assert (reply.status_code, reply.mimetype) == (200, "application/json")
    assert ANSWER in reply.text
    refusal_of(client.post("/invocations", json={**body, "stream": True}, headers=headers))


@pytest.mark.parametrize("unknown_parameters", ["error", "warn"])
def test_the_parameters_may_contain_stream(make_client: MakeClient, unknown_parameters: str) -> None:
    client = make_client(ServerConfig(unknown_parameters=unknown_parameters))
    assert post(client, {"stream": True}).mimetype == "application/jsonlines"
    assert post(client, {"stream": True}, stream=True).mimetype == "application/jsonlines"
    assert post(client, {"stream": False}).mimetype == "application/json"
    assert post(client, {"stream": None}, stream=True).mimetype == "application/jsonlines"
    for parameters, stream in (
        ({"stream": True}, False),
        ({"stream": False}, True),
        ({"stream": "yes"}, None),
    ):
        assert "parameters.stream: given" in refusal_of(post(client, parameters, stream=stream))


def test_a_stream_that_is_closed_before_it_is_read_is_aborted(
    client: FlaskClient, engine: FakeEngine
) -> None:
    response = client.post("/invocations", json={"inputs": "Hello", "stream": True}, buffered=False)
    assert engine.aborted == []
    response.close()
    assert engine.aborted == [engine.requests[0].id]
    assert engine.abort_reasons == [AbortReason.CLIENT_LEFT]


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_ends_before_the_stop_string(stream: bool, client: FlaskClient, engine: FakeEngine) -> None:
    engine.script = says(ANSWER + " And more of it, on and on.")
    reply = post(client, {"stop_sequences": ["France is", "nowhere"], "details": True}, stream=stream)
    last = records(reply)[-1]
    assert last["generated_text"] == "The capital of "
    assert last["details"]["finish_reason"] == "stop_sequence"
    assert engine.aborted == [engine.requests[0].id]
    assert engine.abort_reasons == [AbortReason.STOP_SEQUENCE]
    if stream:
        assert "".join(line["token"]["text"] for line in records(reply)) == "The capital of "


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({"top_k": 5, "top_p": 0.5}, 0.0),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
        ({"temperature": 0.7}, 0.7),
        ({"temperature": 0}, 0.0),
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"temperature": 1e-9}, 0.01),
        ({"temperature": 0.7, "top_p": 0}, 0.0),
        ({"do_sample": True, "top_p": 0.0}, 0.0),
    ],
)
def test_temperature_of_a_request(
    parameters: dict[str, Any], temperature: float, client: FlaskClient, engine: FakeEngine
) -> None:
    assert post(client, parameters).status_code == 200
    assert engine.requests[0].sampling.temperature == temperature


def test_names_of_models_and_neutral_fields_are_accepted(client: FlaskClient) -> None:
    """A gateway may route by the name of the model. The server accepts any name, as on `/v1`."""
    assert post(client, {}, model="chat", adapters="").status_code == 200
    assert client.post("/invocations", json={"prompt": "a", "inputs": None}).status_code == 200


def test_prompt_and_output_can_fill_the_context_exactly(client: FlaskClient, engine: FakeEngine) -> None:
    rest = MAX_MODEL_LEN - len(encode(PROMPT))
    for limit in (rest, rest + 1, 10**9):
        assert post(client, {"max_new_tokens": limit}).status_code == 200
        assert engine.sampling.max_new_tokens == rest
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 10**9}
    for body in (chat, {"prompt": PROMPT, "max_tokens": 10**9}):
        assert client.post("/invocations", json=body).status_code == 200
        last = engine.requests[-1]
        assert last.sampling.max_new_tokens == MAX_MODEL_LEN - len(last.prompt_token_ids)
    refusal = refusal_of(post(client, {"max_new_tokens": rest + 9, "min_new_tokens": rest + 1}))
    assert f"given {rest + 1}; accepted: at most {rest}, the rest of the context after the prompt" in refusal
    refusal = refusal_of(
        client.post("/invocations", json={"messages": chat["messages"], "min_tokens": 10**6})
    )
    assert refusal.endswith(", the rest of the context after the prompt (option.max_model_len)")
    refusal = refusal_of(post(client, {"min_new_tokens": 31}))
    assert refusal.endswith(
        "at most 30, the largest number of new tokens without max_new_tokens or max_tokens"
    )
    refusal = refusal_of(post(client, {"max_new_tokens": 3, "min_new_tokens": 4}))
    assert refusal.endswith("at most 3, the largest number of new tokens")


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Amzn-SageMaker-Adapter-Identifier", "my-lora"), ("X-Amzn-SageMaker-Session-Id", "NEW_SESSION")],
)
def test_headers_of_unsupported_features_are_refused(name: str, value: str, client: FlaskClient) -> None:
    reply = client.post("/invocations", json={"inputs": PROMPT}, headers={name: value})
    assert f'{name}: given "{value}"' in refusal_of(reply)


@pytest.mark.parametrize(
    ("headers", "echoed"),
    [
        ({"X-Amzn-SageMaker-Inference-Id": "abc-1", "x-request-id": "other"}, "abc-1"),
        ({"x-request-id": "my/id:7"}, "my/id:7"),
        ({"x-request-id": "a b"}, None),
        ({"x-request-id": "x" * 129}, None),
        ({}, None),
    ],
)
def test_the_request_id_is_echoed_but_not_used_for_the_engine(
    headers: dict[str, str], echoed: str | None, client: FlaskClient, engine: FakeEngine
) -> None:
    replies = [client.post("/invocations", json={"inputs": PROMPT}, headers=headers) for _ in range(2)]
    ids = [request.id for request in engine.requests]
    assert len(set(ids)) == 2
    assert echoed not in ids
    assert [reply.headers["x-request-id"] for reply in replies] == ([echoed] * 2 if echoed else ids)


def test_custom_attributes_are_returned_with_errors_too(client: FlaskClient) -> None:
    name = "X-Amzn-SageMaker-Custom-Attributes"
    for inputs, status in ((PROMPT, 200), (5, 424)):
        reply = client.post("/invocations", json={"inputs": inputs}, headers={name: "a=b;c=d"})
        assert (reply.status_code, reply.headers[name]) == (status, "a=b;c=d")
    refused = client.post("/invocations", json={"inputs": PROMPT}, headers={name: "x" * 1025})
    assert "1024" in refusal_of(refused)
    assert name not in refused.headers


@pytest.mark.parametrize("pair", [("x-synchronous", "false"), ("x-starting-token", "df87d942")])
@pytest.mark.parametrize("as_attribute", [False, True])
def test_pagination_is_refused(pair: tuple[str, str], as_attribute: bool, client: FlaskClient) -> None:
    name, value = pair
    headers = (
        {"X-Amzn-SageMaker-Custom-Attributes": f"a=b; {name} = {value}"} if as_attribute else {name: value}
    )
    reply = client.post("/invocations", json={"inputs": PROMPT}, headers=headers)
    assert refusal_of(reply).startswith(f'{name}: given "{value}", but responses are not stored')


def test_a_synchronous_request_is_answered(client: FlaskClient) -> None:
    reply = client.post("/invocations", json={"inputs": PROMPT}, headers={"x-synchronous": "True"})
    assert reply.status_code == 200
