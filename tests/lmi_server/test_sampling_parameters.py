"""Sampling, stop and scheduling parameters of a body, as they reach the engine."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient

from engines.core import FinishReason
from lmi_server.apis import prompts
from lmi_server.config import ServerConfig
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import BODIES, PROMPT, post, refusal_of, text_of
from tests.lmi_server.conftest import ANSWER, MakeClient
from tests.lmi_server.fakes import MAX_MODEL_LEN, FakeEngine, encode, tokens
from tests.lmi_server.malformed_bodies import CHAT

PATHS = list(BODIES)


@pytest.mark.parametrize("path", PATHS)
def test_sampling_parameters_reach_the_engine(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    numbers = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.9,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.1,
        "seed": 5,
        "min_new_tokens": 3,
    }
    assert post(client, path, **numbers, logit_bias={"5": 1.5, "0": -100}).status_code == 200
    for name, value in numbers.items():
        assert getattr(engine.sampling, name) == value
    assert set(engine.sampling.logit_bias) == {(5, 1.5), (0, -100.0)}
    assert not engine.sampling.plain
    beams = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": True}
    assert post(client, path, **beams).status_code == 200
    for name, value in beams.items():
        assert getattr(engine.sampling, name) == value
    assert not engine.sampling.logprobs


@pytest.mark.parametrize(
    ("path", "name"),
    [("/invocations", "bad_sequences"), ("/invocations", "bad_words"), (PATHS[0], "bad_words")],
)
def test_bad_words_are_banned_alone_and_after_a_space(
    path: str, name: str, client: FlaskClient, engine: FakeEngine
) -> None:
    assert post(client, path, **{name: ["France", " capital", " "]}).status_code == 200
    expected = {encode("France"), encode(" France"), encode("capital"), encode(" capital"), encode(" ")}
    assert set(engine.sampling.bad_words) == expected
    assert len(engine.sampling.bad_words) == len(expected)


@pytest.mark.parametrize("path", PATHS)
def test_stop_token_ids_act_like_stop_strings(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    (stop,) = encode(".")
    engine.script = lambda request: tokens(request, encode("one two."), FinishReason.EOS_TOKEN)
    reply = post(client, path, stop_token_ids=[stop, stop], **({"details": True} if path == PATHS[2] else {}))
    assert engine.sampling.stop_token_ids == (2, 0, stop)
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
    assert engine.sampling.stop_token_ids == (stop,)


def test_the_finish_reason_distinguishes_eos_from_a_stop_token(
    client: FlaskClient, engine: FakeEngine
) -> None:
    engine.script = lambda request: tokens(request, [*encode("one"), 2], FinishReason.EOS_TOKEN)
    (stop,) = encode(".")

    def reason(**parameters: Any) -> str:
        reply = post(client, "/invocations", details=True, **parameters)
        return str(reply.get_json()["details"]["finish_reason"])

    assert reason(stop_token_ids=[stop]) == "eos_token"
    assert reason(stop_token_ids=[2]) == "eos_token"
    assert reason(stop_token_ids=[2], ignore_eos_token=True) == "stop_sequence"


@pytest.mark.parametrize("path", PATHS)
def test_special_tokens_can_be_shown(path: str, client: FlaskClient, engine: FakeEngine) -> None:
    ids = [*encode("one"), 1, *encode("two"), 2]
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
    path: str, name: str, client: FlaskClient, engine: FakeEngine
) -> None:
    post(client, path)
    whole = engine.requests[0].prompt_token_ids
    for number in (1, 5, 10_000):
        assert post(client, path, **{name: number}).status_code == 200
        assert engine.requests[-1].prompt_token_ids == whole[-number:]


def test_a_prompt_longer_than_the_context_can_be_truncated(client: FlaskClient, engine: FakeEngine) -> None:
    for repeats in (100, 1000):
        long = "one two three " * repeats
        assert client.post("/invocations", json={"inputs": long}).status_code == 424
        cut = {"inputs": long, "parameters": {"truncate": 10, "return_full_text": True}}
        reply = client.post("/invocations", json=cut)
        assert reply.get_json()["generated_text"] == long + ANSWER
        assert len(engine.requests[-1].prompt_token_ids) == 10
        messages = [{"role": "user", "content": long}]
        assert client.post(PATHS[0], json={"messages": messages}).status_code == 400
        assert client.post(PATHS[0], json={"messages": messages, "truncate": 10}).status_code == 200
        assert len(engine.requests[-1].prompt_token_ids) == 10
    ids = {"prompt": [5] * (MAX_MODEL_LEN + 5), "truncate": 7}
    assert client.post("/v1/completions", json=ids).status_code == 200
    assert engine.requests[-1].prompt_token_ids == (5,) * 7


@pytest.mark.parametrize("path", ["/invocations", "/v1/completions"])
def test_truncation_keeps_the_bos_token(path: str, bos_client: FlaskClient, engine: FakeEngine) -> None:
    plain = encode(PROMPT)
    kept = {1: (0,), 2: (0, *plain[-1:]), 6: (0, *plain[-5:]), 10_000: (0, *plain)}
    for number, ids in kept.items():
        assert post(bos_client, path, truncate=number).status_code == 200
        assert engine.requests[-1].prompt_token_ids == ids
    post(bos_client, path, truncate=6, add_special_tokens=False)
    assert engine.requests[-1].prompt_token_ids == plain[-6:]


def test_truncation_of_token_ids_and_of_chats_keeps_only_the_end(
    bos_client: FlaskClient, engine: FakeEngine
) -> None:
    assert bos_client.post("/v1/completions", json={"prompt": [0, 5, 6, 7], "truncate": 2}).status_code == 200
    assert engine.requests[-1].prompt_token_ids == (6, 7)
    post(bos_client, CHAT)
    whole = engine.requests[-1].prompt_token_ids
    post(bos_client, CHAT, truncate=6)
    assert engine.requests[-1].prompt_token_ids == whole[-6:]


def test_truncate_minus_1_cuts_a_prompt_to_the_context(client: FlaskClient, engine: FakeEngine) -> None:
    for path in PATHS:
        post(client, path)
        whole = engine.requests[-1].prompt_token_ids
        assert post(client, path, truncate=-1).status_code == 200
        assert engine.requests[-1].prompt_token_ids == whole
    long = "one two three " * 100
    for prompt, ids in ((long, encode(long)), ([5] * (MAX_MODEL_LEN + 5), (5,) * (MAX_MODEL_LEN + 5))):
        body = {"prompt": prompt, "truncate_prompt_tokens": -1}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert engine.requests[-1].prompt_token_ids == ids[1 - MAX_MODEL_LEN :]
        reply = client.post("/v1/completions", json={**body, "max_tokens": 20})
        assert "max_tokens: given 20; accepted: at most 1" in refusal_of(reply)


def test_truncation_on_the_right_is_refused(client: FlaskClient) -> None:
    for path in PATHS:
        assert post(client, path, truncate=3, truncation_side="left").status_code == 200
        reason = refusal_of(post(client, path, truncate=3, truncation_side="right"))
        assert 'truncation_side: given "right"' in reason
        assert 'accepted: "left"' in reason


@pytest.mark.parametrize("path", PATHS)
def test_priority_and_deadline(path: str, make_client: MakeClient, engine: FakeEngine) -> None:
    client = make_client(ServerConfig(predict_timeout=30))
    post(client, path)
    request = engine.requests[-1]
    assert (request.priority, request.deadline) == (0, request.arrival_time + 30)
    post(client, path, priority=-7, timeout=2.5)
    request = engine.requests[-1]
    assert (request.priority, request.deadline) == (-7, request.arrival_time + 2.5)
    late = refusal_of(post(client, path, timeout=30.5))
    assert "30.5 seconds; accepted: at most 30 (option.predict_timeout)" in late


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
    text = refusal_of(post(client, path, **parameters))
    assert list(parameters)[-1] in text
    assert "engine=MPI supports it" in text
    assert engine.requests == []
    assert post(make_client(), path, **parameters).status_code == 200


def test_beam_search_returns_details(client: FlaskClient, engine: FakeEngine) -> None:
    engine.script = lambda request: tokens(request, encode(ANSWER), per_step=1000)
    body = post(client, "/invocations", num_beams=3).get_json()
    assert body["generated_text"] == ANSWER
    assert body["details"]["generated_tokens"] == len(encode(ANSWER))
    for path in PATHS[:2]:
        assert text_of(post(client, path, num_beams=2, temperature=0)) == ANSWER


@pytest.mark.parametrize("truncate", [None, 10])
def test_tokens_of_a_very_long_text_are_counted_only_as_far_as_needed(
    truncate: int | None, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer needs hundreds of bytes for each token."""
    monkeypatch.setattr(prompts, "_PIECE_CHARS", 100)
    monkeypatch.setattr(prompts, "_CUT_TOKENS", 1)
    seen: list[int] = []
    encode_text = TextModel.encode

    def encode_and_record(model: TextModel, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        seen.append(len(text))
        return encode_text(model, text, add_special_tokens)

    monkeypatch.setattr(TextModel, "encode", encode_and_record)
    parameters = {"truncate": truncate} if truncate else {}
    many = client.post("/invocations", json={"inputs": "one " * 750, "parameters": parameters})
    assert many.status_code == 424
    assert (
        "accepted: at most 255, or at most 100 characters with 'truncate'; this model's maximum context"
        in many.text
    )
    assert max(seen) == 100
    few = client.post("/invocations", json={"inputs": "one two " * 20, "parameters": parameters})
    assert few.status_code == 200


def test_the_refusal_of_a_text_that_a_thread_tokenizes_prints_no_traceback(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """gevent prints the traceback of an exception that ends a function in a thread."""
    monkeypatch.setattr(prompts, "_PIECE_CHARS", 100)
    monkeypatch.setattr(prompts, "_LONG_TEXT_CHARS", 100)
    monkeypatch.setattr(prompts, "monkey", SimpleNamespace(is_module_patched=lambda name: True))
    assert "inputs: given at least" in refusal_of(
        client.post("/invocations", json={"inputs": "q" * MAX_MODEL_LEN * 5})
    )
    assert "Traceback" not in capfd.readouterr().err


def test_only_two_threads_tokenize_long_texts(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may need hundreds of megabytes."""
    monkeypatch.setattr(prompts, "_LONG_TEXT_CHARS", 100)
    monkeypatch.setattr(prompts, "monkey", SimpleNamespace(is_module_patched=lambda name: True))
    running: list[str] = []
    counts: list[int] = []

    def encode_slowly(model: TextModel, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        running.append(text)
        counts.append(len(running))
        time.sleep(0.05)
        running.pop()
        return ()

    def send() -> None:
        refusal_of(client.application.test_client().post("/invocations", json={"inputs": "q" * 101}))

    monkeypatch.setattr(TextModel, "encode", encode_slowly)
    gevent.joinall([gevent.spawn(send) for _ in range(6)], raise_error=True)
    assert (len(counts), max(counts)) == (6, 2)
