"""Log-probabilities in answers: of generated tokens, of top tokens, and of the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import FinishReason, RequestOutput, SamplingParams
from lmi_server.generation.answer_text import Completion, GenerationRequest, TextRules
from lmi_server.generation.candidates import HttpRequest
from lmi_server.generation.generation import TextGeneration
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, chunks, says, tokens, top

PROMPT = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": PROMPT}]


def completions(client: FlaskClient, **fields: Any) -> TestResponse:
    return client.post("/v1/completions", json={"prompt": PROMPT, **fields})


def chat(client: FlaskClient, **fields: Any) -> TestResponse:
    return client.post("/v1/chat/completions", json={"messages": MESSAGES, **fields})


def lmi(client: FlaskClient, stream: bool = False, **parameters: Any) -> TestResponse:
    return client.post("/invocations", json={"inputs": PROMPT, "parameters": parameters, "stream": stream})


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
    return row


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_completions(
    number: int, stream: bool, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    reply = completions(client, logprobs=number, stream=stream, temperature=0.5)
    lists = joined(chunks(reply)) if stream else reply.get_json()["choices"][0]["logprobs"]
    sampling = engine.requests[0].sampling
    assert (sampling.logprobs, sampling.top_logprobs) == (True, number)
    ids = text_model.encode(ANSWER)
    assert lists["token_logprobs"] == [-0.5] * len(ids)
    assert "".join(lists["tokens"]) == ANSWER
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert ANSWER.startswith(token, offset)
    rows = [
        expected_top(text_model, token_id, text, number)
        for token_id, text in zip(ids, lists["tokens"], strict=True)
    ]
    assert lists["top_logprobs"] == (rows if number else [] if stream else None)


def test_completions_list_the_token_even_if_it_is_not_a_top_token(
    client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    (token_id,) = text_model.encode("a")
    others = ((text_model.encode("b")[0], -0.1), (text_model.encode("c")[0], -0.2))
    engine.script = lambda request: [
        RequestOutput(
            request.id, (token_id,), (-3.0,), (others,), finish_reason=FinishReason.LENGTH
        )
    ]  # fmt: skip
    lists = completions(client, logprobs=2, temperature=1).get_json()["choices"][0]["logprobs"]
    assert lists["top_logprobs"] == [{"b": -0.1, "c": -0.2, "a": -3.0}]
    content = chat(client, logprobs=True, top_logprobs=2).get_json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content[0]["top_logprobs"]] == ["b", "c"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_lists_the_prompt_first(
    stream: bool, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    reply = completions(client, logprobs=2, echo=True, stream=stream)
    if stream:
        records = chunks(reply)
        lists = joined(records)
        text = "".join(record["choices"][0]["text"] for record in records)
    else:
        choice = reply.get_json()["choices"][0]
        lists, text = choice["logprobs"], choice["text"]
    assert text == PROMPT + ANSWER == "".join(lists["tokens"])
    num_prompt = len(text_model.encode(PROMPT))
    prompt_logprobs = [None, *(float(-position) for position in range(1, num_prompt))]
    assert lists["token_logprobs"] == prompt_logprobs + [-0.5] * len(text_model.encode(ANSWER))
    assert lists["top_logprobs"][0] is None
    assert all(len(row) >= 1 for row in lists["top_logprobs"][1:])
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert text.startswith(token, offset)
    assert engine.requests[0].sampling.prompt_logprobs == 2


def test_echo_of_a_truncated_prompt_is_the_rest_of_it(
    client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    choice = completions(client, logprobs=0, echo=True, truncate_prompt_tokens=3).get_json()["choices"][0]
    rest = text_model.decode(text_model.encode(PROMPT)[-3:])
    assert choice["text"] == rest + ANSWER == "".join(choice["logprobs"]["tokens"])


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_chat(
    number: int, stream: bool, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    engine.script = says(text_model, "café 😀 one")
    reply = chat(client, logprobs=True, top_logprobs=number, stream=stream)
    content = (
        joined(chunks(reply))["content"] if stream else reply.get_json()["choices"][0]["logprobs"]["content"]
    )
    assert "".join(entry["token"] for entry in content) == "café 😀 one"
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "café 😀 one"
    assert {entry["logprob"] for entry in content} == {-0.5}
    ids = text_model.encode("café 😀 one")
    for token_id, entry in zip(ids, content, strict=True):
        assert len(entry["top_logprobs"]) == number
        for (other, logprob), found in zip(top(token_id, number), entry["top_logprobs"], strict=True):
            text = entry["token"] if other == token_id else text_model.token_text(other)
            data = None if "\ufffd" in text else list(text.encode())
            assert found == {"token": text, "logprob": logprob, "bytes": data}


def test_chat_without_logprobs_has_none(client: FlaskClient, engine: FakeEngine) -> None:
    assert chat(client, logprobs=False).get_json()["choices"][0]["logprobs"] is None
    assert all(record["choices"][0]["logprobs"] is None for record in chunks(chat(client, stream=True)))
    assert not engine.requests[0].sampling.logprobs


@pytest.mark.parametrize("path", ["completions", "chat", "lmi"])
def test_log_probabilities_do_not_reveal_a_stop_string(
    path: str, client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    """The tokens 'F', 'r', 'an', 'ce' are held back until it is clear whether the stop string follows."""
    engine.script = says(text_model, ANSWER)
    if path == "completions":
        reply = completions(client, logprobs=1, stream=True, stop="France is")
    elif path == "chat":
        reply = chat(client, logprobs=True, top_logprobs=1, stream=True, stop="France is")
    else:
        reply = lmi(client, stream=True, top_n_tokens=1, stop="France is")
    records = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n") if line[-1:] == "}"]
    texts: list[str] = []
    for record in records:
        if path == "lmi":
            texts += [record["token"]["text"], *(entry["text"] for entry in record["top_tokens"])]
        elif logprobs := record["choices"][0]["logprobs"]:
            texts += (
                logprobs["tokens"] if path == "completions" else [e["token"] for e in logprobs["content"]]
            )
    assert "The" in texts
    assert not any(set("Fr") & set(text) for text in texts)


def test_lmi_top_tokens(client: FlaskClient, engine: FakeEngine, text_model: TextModel) -> None:
    ids = text_model.encode(ANSWER)
    for name in ("top_n_tokens", "logprobs"):
        details = lmi(client, **{name: 2}).get_json()["details"]
        assert engine.requests[-1].sampling.top_logprobs == 2
        for token, entries, token_id in zip(details["tokens"], details["top_tokens"], ids, strict=True):
            assert [entry["id"] for entry in entries] == [other for other, _ in top(token_id, 2)]
            assert entries[0] == token
            assert entries[1]["log_prob"] == -1.5
    lines = [json.loads(line) for line in lmi(client, stream=True, top_n_tokens=2).text.splitlines()]
    assert [len(line["top_tokens"]) for line in lines] == [2] * len(ids)
    assert "details" in lines[-1]
    assert lmi(client, logprobs=False).get_json() == {"generated_text": ANSWER}


def test_lmi_prefill(client: FlaskClient, engine: FakeEngine, text_model: TextModel) -> None:
    details = lmi(client, decoder_input_details=True).get_json()["details"]
    prefill = details["prefill"]
    assert [token["id"] for token in prefill] == list(text_model.encode(PROMPT))
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
        "completions": completions(client, prompt_logprobs=number).get_json()["choices"][0],
        "chat": chat(client, prompt_logprobs=number).get_json(),
        "lmi": lmi(client, prompt_logprobs=number).get_json()["details"],
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
    assert "prompt_logprobs" not in completions(client).get_json()["choices"][0]


def test_minus_infinity_is_returned_as_a_finite_number(
    client: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    engine.script = lambda request: tokens(request, text_model.encode("a"), logprob=float("-inf"))
    lists = completions(client, logprobs=1).get_json()["choices"][0]["logprobs"]
    assert lists["token_logprobs"] == [-9999.0]
    assert lists["top_logprobs"] == [{"a": -9999.0}]


def complete_long_prompt(engine: FakeEngine, text_model: TextModel, n: int = 1) -> Sequence[Completion]:
    """Complete a prompt of 2000 tokens, with 20 top tokens for each."""
    sampling = SamplingParams(max_new_tokens=1, prompt_logprobs=20)
    ids = tuple(number % text_model.vocabulary_size for number in range(2000))
    request = GenerationRequest("", ids, sampling, TextRules(continues_prompt=True), "prompt", n, n)
    http = HttpRequest("a", arrival_time=0.0)
    generation = TextGeneration(http, [request], engine=engine, text=text_model, client=ClientWatch(None))
    for _ in generation:
        pass
    return generation.result.completions


def test_log_probabilities_of_a_long_prompt_decode_each_token_once(
    engine: FakeEngine, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_model = TextModel.from_folder(model_folder)
    num_decodes = 0
    decode: Callable[..., str] = TextModel.decode

    def counting(self: TextModel, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        nonlocal num_decodes
        num_decodes += 1
        return decode(self, token_ids, skip_special_tokens)

    monkeypatch.setattr(TextModel, "decode", counting)
    complete_long_prompt(engine, text_model)
    assert num_decodes <= 2 * text_model.vocabulary_size


def test_other_greenlets_run_while_a_long_prompt_is_completed(
    engine: FakeEngine, text_model: TextModel
) -> None:
    num_turns = 0

    def count_turns() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            gevent.sleep(0)

    other = gevent.spawn(count_turns)
    complete_long_prompt(engine, text_model)
    other.kill()
    assert num_turns > 5


def test_choices_of_a_prompt_share_its_log_probabilities(engine: FakeEngine, text_model: TextModel) -> None:
    first, *others = (
        completion.prompt_tokens for completion in complete_long_prompt(engine, text_model, n=3)
    )
    assert len(first) == 2000
    assert all(tokens is first for tokens in others)
