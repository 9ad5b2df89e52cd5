"""Log-probabilities in answers: of generated tokens, of top tokens, and of the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.core import AbortReason, FinishReason, RequestOutput
from lmi_server.apis import serve
from lmi_server.apis.parameters import combinations
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import PROMPT, post, refusal_of
from tests.lmi_server.conftest import ANSWER, MakeClient
from tests.lmi_server.fakes import (
    FakeEngine,
    chunks,
    encode,
    says,
    tokens,
    top,
)
from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS, INVOCATIONS


def choice_of(client: FlaskClient, path: str, **parameters: Any) -> dict[str, Any]:
    """Return the only choice of a whole answer."""
    (choice,) = post(client, path, **parameters).get_json()["choices"]
    return dict(choice)


def joined(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Concatenate the log-probability lists of all records of a stream with one choice."""
    lists: dict[str, list[Any]] = {}
    for record in records:
        for name, values in (record["choices"][0]["logprobs"] or {}).items():
            lists.setdefault(name, [])
            lists[name] += values or []
    return lists


def expected_top(text_model: TextModel, token_id: int, text: str, number: int) -> dict[str, float]:
    """Return a row of `top_logprobs`, which is keyed by text. `text` is the text of the token itself."""
    row: dict[str, float] = {}
    for other, logprob in top(token_id, number):
        row.setdefault(text if other == token_id else text_model.token_text(other), logprob)
    return row or {text: -0.5}


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_completions(
    number: int, stream: bool, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    reply = post(client, COMPLETIONS, logprobs=number, stream=stream, temperature=0.5)
    lists = joined(chunks(reply)) if stream else reply.get_json()["choices"][0]["logprobs"]
    sampling = engine.requests[0].sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (True, number)
    ids = encode(ANSWER)
    assert lists["token_logprobs"] == [-0.5] * len(ids)
    assert "".join(lists["tokens"]) == ANSWER
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert ANSWER.startswith(token, offset)
    rows = [
        expected_top(text_model, token_id, text, number)
        for token_id, text in zip(ids, lists["tokens"], strict=True)
    ]
    assert lists["top_logprobs"] == rows


def test_completions_list_the_token_even_if_it_is_not_a_top_token(
    client: FlaskClient, engine: FakeEngine
) -> None:
    (token_id,) = encode("a")
    others = ((encode("b")[0], -0.1), (encode("c")[0], -0.2))
    engine.script = lambda request: [
        RequestOutput(
            request.id, (token_id,), (-3.0,), (others,), finish_reason=FinishReason.LENGTH
        )
    ]  # fmt: skip
    lists = choice_of(client, COMPLETIONS, logprobs=2, temperature=1)["logprobs"]
    assert lists["top_logprobs"] == [{"b": -0.1, "c": -0.2, "a": -3.0}]
    content = choice_of(client, CHAT, logprobs=True, top_logprobs=2)["logprobs"]["content"]
    assert [entry["token"] for entry in content[0]["top_logprobs"]] == ["b", "c"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_lists_the_prompt_first(
    stream: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    reply = post(client, COMPLETIONS, logprobs=2, echo=True, stream=stream)
    if stream:
        records = chunks(reply)
        lists = joined(records)
        text = "".join(record["choices"][0]["text"] for record in records)
    else:
        choice = reply.get_json()["choices"][0]
        lists, text = choice["logprobs"], choice["text"]
    assert text == PROMPT + ANSWER == "".join(lists["tokens"])
    num_prompt = len(encode(PROMPT))
    prompt_logprobs = [None, *(float(-position) for position in range(1, num_prompt))]
    assert lists["token_logprobs"] == prompt_logprobs + [-0.5] * len(encode(ANSWER))
    assert lists["top_logprobs"][0] is None
    assert all(len(row) >= 1 for row in lists["top_logprobs"][1:])
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert text.startswith(token, offset)
    assert engine.requests[0].sampling.prompt_logprobs == 2


def test_echo_of_a_truncated_prompt_is_the_rest_of_it(client: FlaskClient, text_model: TextModel) -> None:
    choice = choice_of(client, COMPLETIONS, logprobs=0, echo=True, truncate_prompt_tokens=3)
    rest = text_model.decode(encode(PROMPT)[-3:])
    assert choice["text"] == rest + ANSWER == "".join(choice["logprobs"]["tokens"])


def test_echo_of_a_prompt_that_is_not_truncated_is_the_text_of_the_client(client: FlaskClient) -> None:
    body = {"prompt": "<|im_start|>user", "echo": True}
    for number in (-1, 10_000):
        reply = client.post("/v1/completions", json={**body, "truncate_prompt_tokens": number}).get_json()
        assert reply["choices"][0]["text"] == "<|im_start|>user" + ANSWER


MARKED = "<|im_start|>user\nWhat<|im_end|>"


def echoed(
    client: FlaskClient, stream: bool, **fields: Any
) -> tuple[str, dict[int, str], dict[str, list[Any]]]:
    """Return the text of an echoed prompt with its answer, its tokens by offset, and its lists."""
    body = {"prompt": MARKED, "echo": True, "logprobs": 2, "stream": stream, **fields}
    reply = client.post("/v1/completions", json=body)
    records = chunks(reply) if stream else [reply.get_json()]
    text = "".join(record["choices"][0]["text"] for record in records)
    lists = joined(records)
    return text, dict(zip(lists["text_offset"], lists["tokens"], strict=True)), lists


@pytest.mark.parametrize("stream", [False, True])
def test_special_tokens_of_an_echoed_prompt_have_names_and_offsets(
    stream: bool, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    engine.script = lambda request: tokens(request, [*encode("one"), 2], FinishReason.EOS_TOKEN)
    text, by_offset, lists = echoed(client, stream)
    assert text == MARKED + "one"
    assert by_offset[0] == lists["tokens"][0] == "<|im_start|>"
    assert by_offset[len("<|im_start|>")] == "u"
    assert lists["tokens"][-1] == "<|im_end|>"
    assert lists["text_offset"][-1] == len(text)
    for token, offset in zip(lists["tokens"][:-1], lists["text_offset"], strict=False):
        assert text.startswith(token, offset)
    prompt_end = lists["tokens"].index("<|im_end|>")
    assert "<|im_end|>" in lists["top_logprobs"][prompt_end]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_skip_special_tokens_that_are_not_in_the_echoed_text(
    stream: bool, bos_client: FlaskClient
) -> None:
    for skip in (True, False):
        text, _, lists = echoed(bos_client, stream, skip_special_tokens=skip)
        assert text == MARKED + ANSWER
        assert lists["tokens"][:2] == ["<|endoftext|>", "<|im_start|>"]
        assert lists["text_offset"][:3] == [0, 0, len("<|im_start|>")]
        assert all(
            text.startswith(*place)
            for place in zip(lists["tokens"][1:], lists["text_offset"][1:], strict=True)
        )
    text, _, lists = echoed(bos_client, stream, prompt=list(encode(MARKED)))
    assert text == "user\nWhat" + ANSWER
    assert lists["tokens"][:2] == ["<|im_start|>", "u"]
    assert lists["text_offset"][:3] == [0, 0, 1]
    assert lists["text_offset"][len(encode(MARKED))] == len("user\nWhat")


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_without_text_lists_its_tokens(stream: bool, client: FlaskClient) -> None:
    text, _, lists = echoed(client, stream, prompt=[1])
    assert text == ANSWER
    assert lists["tokens"][0] == "<|im_start|>"
    assert lists["text_offset"][:2] == [0, 0]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_the_eos_token_of_a_chat_has_a_name(
    stream: bool, skip: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    engine.script = lambda request: tokens(request, [*encode("one"), 2], FinishReason.EOS_TOKEN)
    reply = post(client, CHAT, logprobs=True, top_logprobs=1, stream=stream, skip_special_tokens=skip)
    choices = [record["choices"][0] for record in (chunks(reply) if stream else [reply.get_json()])]
    content = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    named = {"token": "<|im_end|>", "logprob": -0.5, "bytes": list(b"<|im_end|>")}
    assert content[-1] == {**named, "top_logprobs": [named]}
    texts = [
        choice["delta"].get("content", "") if stream else choice["message"]["content"] for choice in choices
    ]
    assert "".join(texts) == "one"


def test_special_tokens_of_the_prompt_have_names(client: FlaskClient) -> None:
    rows = post(client, CHAT, prompt_logprobs=0).get_json()["prompt_logprobs"]
    assert {row["2"]["decoded_token"] for row in rows[1:] if "2" in row} == {"<|im_end|>"}
    body = {"inputs": MARKED, "parameters": {"decoder_input_details": True}}
    prefill = client.post("/invocations", json=body).get_json()["details"]["prefill"]
    assert "".join(token["text"] for token in prefill) == MARKED


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_chat(
    number: int, stream: bool, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    engine.script = says("café 😀 one")
    reply = post(client, CHAT, logprobs=True, top_logprobs=number, stream=stream)
    content = (
        joined(chunks(reply))["content"] if stream else reply.get_json()["choices"][0]["logprobs"]["content"]
    )
    assert "".join(entry["token"] for entry in content) == "café 😀 one"
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "café 😀 one"
    assert {entry["logprob"] for entry in content} == {-0.5}
    ids = encode("café 😀 one")
    for token_id, entry in zip(ids, content, strict=True):
        assert len(entry["top_logprobs"]) == number
        for (other, logprob), found in zip(top(token_id, number), entry["top_logprobs"], strict=True):
            text = entry["token"] if other == token_id else text_model.token_text(other)
            data = None if "\ufffd" in text else list(text.encode())
            assert found == {"token": text, "logprob": logprob, "bytes": data}


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        (COMPLETIONS, {"logprobs": 1}),
        (CHAT, {"logprobs": True, "top_logprobs": 1}),
        (INVOCATIONS, {"top_n_tokens": 1}),
    ],
)
def test_log_probabilities_do_not_reveal_a_stop_string(
    path: str, parameters: dict[str, Any], client: FlaskClient
) -> None:
    """The tokens 'F', 'r', 'an', 'ce' are held back until it is clear whether the stop string follows."""
    reply = post(client, path, stream=True, stop="France is", **parameters)
    records = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n") if line[-1:] == "}"]
    texts: list[str] = []
    for record in records:
        if path == INVOCATIONS:
            texts += [record["token"]["text"], *(entry["text"] for entry in record["top_tokens"])]
        elif logprobs := record["choices"][0]["logprobs"]:
            content = logprobs.get("content", ())
            texts += [*logprobs.get("tokens", ()), *(entry["token"] for entry in content)]
    if path == INVOCATIONS:
        texts += [entry["text"] for (entry,) in records[-1]["details"]["top_tokens"]]
    assert "The" in texts
    assert not any(set("Fr") & set(text) for text in texts)


def test_lmi_top_tokens(client: FlaskClient, engine: FakeEngine) -> None:
    ids = encode(ANSWER)
    for name in ("top_n_tokens", "logprobs"):
        details = post(client, INVOCATIONS, **{name: 2}).get_json()["details"]
        assert engine.sampling.top_logprobs == 2
        for token, entries, token_id in zip(details["tokens"], details["top_tokens"], ids, strict=True):
            assert [entry["id"] for entry in entries] == [other for other, _ in top(token_id, 2)]
            assert entries[0] == token
            assert entries[1]["log_prob"] == -1.5
    streamed = post(client, INVOCATIONS, stream=True, top_n_tokens=2)
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert [len(line["top_tokens"]) for line in lines] == [2] * len(ids)
    assert lines[-1]["details"]["top_tokens"] == [line["top_tokens"] for line in lines]
    assert post(client, INVOCATIONS, logprobs=False).get_json() == {"generated_text": ANSWER}


def test_lmi_prefill(client: FlaskClient, engine: FakeEngine) -> None:
    details = post(client, INVOCATIONS, decoder_input_details=True).get_json()["details"]
    prefill = details["prefill"]
    assert [token["id"] for token in prefill] == list(encode(PROMPT))
    assert "".join(token["text"] for token in prefill) == PROMPT
    assert [token["log_prob"] for token in prefill] == [None, *(float(-i) for i in range(1, len(prefill)))]
    assert "prompt_logprobs" not in details
    assert engine.requests[0].sampling.prompt_logprobs == 0
    short = client.post("/invocations", json={"inputs": "a", "parameters": {"decoder_input_details": True}})
    assert [token["log_prob"] for token in short.get_json()["details"]["prefill"]] == [None]


@pytest.mark.parametrize("number", [0, 2])
def test_prompt_logprobs_use_the_format_of_vllm(
    number: int, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    bodies = {
        "completions": choice_of(client, COMPLETIONS, prompt_logprobs=number),
        "chat": post(client, CHAT, prompt_logprobs=number).get_json(),
        "lmi": post(client, INVOCATIONS, prompt_logprobs=number).get_json()["details"],
    }
    for (path, body), request in zip(bodies.items(), engine.requests, strict=True):
        rows = body["prompt_logprobs"]
        assert rows[0] is None
        assert len(rows) == len(request.prompt_token_ids)
        own = rows[1][str(request.prompt_token_ids[1])]
        assert own["logprob"] == -1.0
        assert own["rank"] == (1 if number else None)
        assert path == "chat" or own["decoded_token"] == text_model.token_text(request.prompt_token_ids[1])
        assert all(len(row) == max(1, number) for row in rows[1:])
    assert "prompt_logprobs" not in choice_of(client, COMPLETIONS)


@pytest.mark.parametrize(
    ("path", "parameters", "name"),
    [
        (COMPLETIONS, {"prompt_logprobs": 20, "n": 8}, "prompt_logprobs"),
        (COMPLETIONS, {"logprobs": 4, "echo": True, "n": 8, "stream": True}, "logprobs"),
        (CHAT, {"prompt_logprobs": 20}, "prompt_logprobs"),
        (INVOCATIONS, {"decoder_input_details": True, "top_n_tokens": 4}, "parameters.decoder_input_details"),
    ],
)
def test_too_many_log_probabilities_of_prompts_are_refused(
    path: str,
    parameters: dict[str, Any],
    name: str,
    client: FlaskClient,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit counts prompt tokens, their top tokens and answers."""
    assert post(client, path, **parameters).status_code == 200
    (request, *others) = engine.requests
    assert request.sampling.prompt_logprobs is not None
    number = len(request.prompt_token_ids) * (request.sampling.prompt_logprobs + 1) * (1 + len(others))
    monkeypatch.setattr(combinations, "MAX_PROMPT_LOGPROBS", number)
    assert post(client, path, **parameters).status_code == 200
    monkeypatch.setattr(combinations, "MAX_PROMPT_LOGPROBS", number - 1)
    engine.requests.clear()
    text = refusal_of(post(client, path, **parameters))
    assert text.startswith(f"{name}: given ")
    assert f"which makes {number} log-probabilities; accepted: at most {number - 1}" in text
    assert not engine.requests


@pytest.mark.parametrize(
    ("path", "parameters", "per_token"),
    [
        (COMPLETIONS, {"logprobs": 3, "n": 4}, 12),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
        (INVOCATIONS, {"top_n_tokens": 2, "best_of": 3, "n": 1, "do_sample": True}, 6),
    ],
)
def test_a_whole_answer_with_too_many_top_tokens_fails(
    path: str,
    parameters: dict[str, Any],
    per_token: int,
    client: FlaskClient,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only generated tokens count, not the largest number of them: most answers end long before."""
    number = len(encode(ANSWER)) * per_token
    monkeypatch.setattr(serve, "MAX_TOP_TOKENS", number)
    assert post(client, path, **parameters).status_code == 200
    monkeypatch.setattr(serve, "MAX_TOP_TOKENS", number - 1)
    engine.requests.clear()
    text = refusal_of(post(client, path, **parameters))
    assert f"more than {number - 1} most likely tokens" in text
    assert "with those of candidates that best_of drops; accepted: at most" in text
    assert text.endswith("in an answer that is not streamed")
    assert set(engine.abort_reasons) <= {AbortReason.FAILED}


def test_streams_list_any_number_of_top_tokens(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_TOP_TOKENS", 0)
    records = chunks(post(client, COMPLETIONS, logprobs=3, stream=True))
    assert len(joined(records)["tokens"]) == len(encode(ANSWER))
    assert post(client, COMPLETIONS, logprobs=0).status_code == 200


def test_the_engine_without_log_probabilities_of_prompts_is_named(make_client: MakeClient) -> None:
    client = make_client(engine_kind="Python")
    assert post(client, COMPLETIONS, logprobs=1).status_code == 200
    text = refusal_of(post(client, COMPLETIONS, logprobs=1, echo=True))
    assert (
        "logprobs: given 1, but engine=Python does not support it together with echo; accepted: leave" in text
    )


def test_minus_infinity_is_returned_as_a_finite_number(client: FlaskClient, engine: FakeEngine) -> None:
    engine.script = lambda request: tokens(request, encode("a"), logprob=float("-inf"))
    lists = choice_of(client, COMPLETIONS, logprobs=1)["logprobs"]
    assert lists["token_logprobs"] == [-9999.0]
    assert lists["top_logprobs"] == [{"a": -9999.0}]
