"""Sampling, stop and scheduling parameters of a body, as they reach the engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import FinishReason, SamplingParams
from lmi_server.config import ServerConfig
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import ANSWER, MakeClient
from tests.lmi_server.fakes import MAX_MODEL_LEN, FakeEngine, tokens

PROMPT = "What is the capital of France?"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/completions": {"prompt": PROMPT},
    "/invocations": {"inputs": PROMPT},
}
PATHS = list(BODIES)


def post(client: FlaskClient, path: str, **parameters: Any) -> TestResponse:
    own = {"parameters": parameters} if path == "/invocations" else parameters
    return client.post(path, json={**BODIES[path], **own})


def text_of(reply: TestResponse) -> str:
    body = reply.get_json()
    if "generated_text" in body:
        return str(body["generated_text"])
    choice = body["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.fixture
def sampling(engine: FakeEngine) -> Any:
    """A function that returns the sampling parameters of the last request."""

    def last() -> SamplingParams:
        return engine.requests[-1].sampling

    return last


@pytest.mark.parametrize("path", PATHS)
def test_sampling_parameters_reach_the_engine(path: str, client: FlaskClient, sampling: Any) -> None:
    numbers = {
        "min_p": 0.1,
        "typical_p": 0.9,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "min_new_tokens": 3,
    }
    assert post(client, path, **numbers, logit_bias={"5": 1.5, "0": -100}).status_code == 200
    for name, value in numbers.items():
        assert getattr(sampling(), name) == value
    assert set(sampling().logit_bias) == {(5, 1.5), (0, -100.0)}
    assert not sampling().plain
    beams = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": True}
    assert post(client, path, **beams).status_code == 200
    for name, value in beams.items():
        assert getattr(sampling(), name) == value
    assert not sampling().logprobs


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/invocations", ["min_new_tokens", "min_length", "min_tokens"]),
        ("/v1/completions", ["min_tokens", "min_new_tokens", "min_length"]),
    ],
)
def test_names_of_the_minimum_length(path: str, names: list[str], client: FlaskClient, sampling: Any) -> None:
    for name in names:
        assert post(client, path, **{name: 5}).status_code == 200
        assert sampling().min_new_tokens == 5
    limit = {"max_new_tokens": 4} if path == "/invocations" else {"max_tokens": 4}
    refused = post(client, path, min_tokens=5, **limit)
    assert refused.status_code in (400, 424)
    assert "given 5; accepted: at most 4" in refused.text


def test_a_greedy_request_without_other_parameters_is_plain(client: FlaskClient, sampling: Any) -> None:
    for path in PATHS:
        assert post(client, path, temperature=0).status_code == 200
        assert sampling().plain


@pytest.mark.parametrize(
    ("path", "name"),
    [("/invocations", "bad_sequences"), ("/invocations", "bad_words"), (PATHS[0], "bad_words")],
)
def test_bad_words_are_banned_alone_and_after_a_space(
    path: str, name: str, client: FlaskClient, sampling: Any, text_model: TextModel
) -> None:
    assert post(client, path, **{name: ["France", " capital", " "]}).status_code == 200
    encode = text_model.encode
    expected = {encode("France"), encode(" France"), encode("capital"), encode(" capital"), encode(" ")}
    assert set(sampling().bad_words) == expected
    assert len(sampling().bad_words) == len(expected)


@pytest.mark.parametrize("path", PATHS)
def test_stop_token_ids_act_like_stop_strings(
    path: str, client: FlaskClient, engine: FakeEngine, text_model: TextModel, sampling: Any
) -> None:
    (stop,) = text_model.encode(".")
    engine.script = lambda request: tokens(request, text_model.encode("one two."), FinishReason.EOS_TOKEN)
    reply = post(client, path, stop_token_ids=[stop, stop], **({"details": True} if path == PATHS[2] else {}))
    assert sampling().stop_token_ids == (2, 0, stop)
    assert text_of(reply) == "one two"
    if path == PATHS[2]:
        details = reply.get_json()["details"]
        assert details["finish_reason"] == "stop_sequence"
        assert details["tokens"][-1] == {"id": stop, "text": ".", "log_prob": -0.5}
    else:
        assert reply.get_json()["choices"][0]["finish_reason"] == "stop"
    included = post(client, path, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert text_of(included) == "one two."
    post(client, path, stop_token_ids=[stop], ignore_eos=True)
    assert sampling().stop_token_ids == (stop,)


def test_the_finish_reason_distinguishes_eos_from_a_stop_token(
    client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    engine.script = lambda request: tokens(request, [*text_model.encode("one"), 2], FinishReason.EOS_TOKEN)
    (stop,) = text_model.encode(".")

    def reason(**parameters: Any) -> str:
        reply = post(client, "/invocations", details=True, **parameters)
        return str(reply.get_json()["details"]["finish_reason"])

    assert reason(stop_token_ids=[stop]) == "eos_token"
    assert reason(stop_token_ids=[2]) == "eos_token"
    assert reason(stop_token_ids=[2], ignore_eos_token=True) == "stop_sequence"


@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_string_can_be_included_in_the_text(stream: bool, client: FlaskClient) -> None:
    parameters = {"stop": ["France"], "include_stop_str_in_output": True, "details": True}
    body = {"inputs": PROMPT, "parameters": parameters, "stream": stream}
    reply = client.post("/invocations", json=body)
    assert '"generated_text":"The capital of France"' in reply.text
    assert '"finish_reason":"stop_sequence"' in reply.text


@pytest.mark.parametrize("path", PATHS)
def test_special_tokens_can_be_shown(
    path: str, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    ids = [*text_model.encode("one"), 1, *text_model.encode("two"), 2]
    engine.script = lambda request: tokens(request, ids, FinishReason.EOS_TOKEN)
    assert text_of(post(client, path)) == "onetwo"
    assert text_of(post(client, path, skip_special_tokens=False)) == "one<|im_start|>two"
    shown = post(client, path, skip_special_tokens=False, include_stop_str_in_output=True)
    assert text_of(shown) == "one<|im_start|>two<|im_end|>"
    cut = post(client, path, skip_special_tokens=False, stop="<|im_start|>")
    assert text_of(cut) == "one"


@pytest.mark.parametrize(
    ("path", "name"),
    [("/invocations", "truncate"), ("/v1/completions", "truncate_prompt_tokens"), (PATHS[0], "truncate")],
)
def test_truncation_keeps_the_end_of_the_prompt(
    path: str, name: str, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    post(client, path)
    whole = engine.requests[0].prompt_token_ids
    for number in (1, 5, 10_000):
        assert post(client, path, **{name: number}).status_code == 200
        assert engine.requests[-1].prompt_token_ids == whole[-number:]


def test_a_prompt_longer_than_the_context_can_be_truncated(
    client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    long = "one two three " * 100
    assert client.post("/invocations", json={"inputs": long}).status_code == 424
    cut = {"inputs": long, "parameters": {"truncate": 10, "return_full_text": True}}
    reply = client.post("/invocations", json=cut)
    assert reply.get_json()["generated_text"] == long + ANSWER
    assert len(engine.requests[-1].prompt_token_ids) == 10
    ids = {"prompt": [5] * (MAX_MODEL_LEN + 5), "truncate": 7}
    assert client.post("/v1/completions", json=ids).status_code == 200
    assert engine.requests[-1].prompt_token_ids == (5,) * 7


@pytest.mark.parametrize("path", PATHS)
def test_priority_and_deadline(path: str, make_client: MakeClient, engine: FakeEngine) -> None:
    client = make_client(ServerConfig(predict_timeout=30))
    post(client, path)
    request = engine.requests[-1]
    assert (request.priority, request.deadline) == (0, request.arrival_time + 30)
    post(client, path, priority=-7, timeout=2.5)
    request = engine.requests[-1]
    assert (request.priority, request.deadline) == (-7, request.arrival_time + 2.5)
    late = post(client, path, timeout=30.5)
    assert late.status_code in (400, 424)
    assert "30.5 seconds; accepted: at most 30 (option.predict_timeout)" in late.text


@pytest.mark.parametrize("kind", ["MPI", "Python"])
def test_a_request_can_set_its_own_timeout(kind: str, make_client: MakeClient, engine: FakeEngine) -> None:
    never = threading.Event()
    engine.script = lambda request: [never]
    reply = post(make_client(engine_kind=kind), "/invocations", timeout=0.05)
    assert reply.status_code == 504
    assert "0.05 s (timeout)" in reply.get_json()["error"]
    assert engine.aborted == [engine.requests[0].id]
    if kind == "Python":
        assert engine.requests[0].deadline is None


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/invocations", {"num_beams": 2}),
        ("/invocations", {"decoder_input_details": True}),
        ("/invocations", {"prompt_logprobs": 0}),
        ("/v1/completions", {"prompt_logprobs": 1}),
        ("/v1/completions", {"echo": True, "logprobs": 0}),
        ("/v1/chat/completions", {"num_beams": 3}),
    ],
)
def test_engine_python_refuses_unsupported_parameters(
    path: str, parameters: dict[str, Any], make_client: MakeClient, engine: FakeEngine
) -> None:
    client = make_client(engine_kind="Python")
    reply = post(client, path, **parameters)
    assert reply.status_code in (400, 424)
    assert list(parameters)[-1] in reply.text
    assert "engine=MPI supports it" in reply.text
    assert engine.requests == []
    assert post(make_client(), path, **parameters).status_code == 200


def test_beam_search_returns_details(client: FlaskClient, engine: FakeEngine, text_model: TextModel) -> None:
    engine.script = lambda request: tokens(request, text_model.encode(ANSWER), per_step=1000)
    body = post(client, "/invocations", num_beams=3).get_json()
    assert body["generated_text"] == ANSWER
    assert body["details"]["generated_tokens"] == len(text_model.encode(ANSWER))
    for path in PATHS[:2]:
        assert text_of(post(client, path, num_beams=2, temperature=0)) == ANSWER
