"""`n` and `best_of`: several choices for a prompt, on every path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Event
from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.core import FinishReason, Request, RequestOutput
from engines.errors import RequestFailed, TooManyOutputs
from lmi_server.apis.parameters import combinations
from lmi_server.generation.candidates import choice_seed
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import BODIES, PROMPT, post, refusal_of
from tests.lmi_server.conftest import MakeClient
from tests.lmi_server.fakes import FakeEngine, chunks, encode, tokens
from tests.lmi_server.malformed_bodies import CHAT, COMPLETIONS, INVOCATIONS

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
LOGPROBS = {"one": -3.0, "two": -1.0, "three": -2.0, "four": -0.5}


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that answers the k-th request of a submission with the k-th word and its log-probability."""

    def script(request: Request) -> list[RequestOutput]:
        word = WORDS[int(request.id.rpartition("-")[2]) if "-" in request.id else 0]
        return tokens(request, encode(word), logprob=LOGPROBS.get(word, -9.0), num_cached_tokens=7)

    return FakeEngine(script)


def test_each_choice_is_a_request_that_can_share_the_prompts_blocks(
    client: FlaskClient, engine: FakeEngine
) -> None:
    body = {"prompt": ["Hello", "Hi"], "n": 3, "temperature": 0.5, "seed": 11, "priority": -4}
    reply = client.post("/v1/completions", json=body).get_json()
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == list(enumerate(WORDS[:6]))
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len(encode("Hello")) + len(encode("Hi")), "each prompt counts once"
    assert usage["prompt_tokens_details"] == {"cached_tokens": 14}
    assert engine.submissions == [6]
    requests = engine.requests
    assert [r.prompt_token_ids for r in requests] == [encode(p) for p in ("Hello", "Hi") for _ in "123"]
    first, second = requests[0].id, requests[3].id
    assert [r.same_prompt_as for r in requests] == ["", first, first, "", second, second]
    seeds = [choice_seed(11, choice) for choice in range(3)]
    assert [r.sampling.seed for r in requests] == seeds * 2
    assert seeds[0] == 11
    assert len(set(seeds)) == 3
    assert {r.priority for r in requests} == {-4}
    assert len({r.id for r in requests}) == 6


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, {"n": 3}, "n"),
        (COMPLETIONS, {"num_return_sequences": 3}, "num_return_sequences"),
        (COMPLETIONS, {"prompt": ["Hello", "Hi"], "n": 1}, "prompt"),
        (COMPLETIONS, {"prompt": ["Hello", "Hi"], "n": 2, "best_of": 3}, "best_of"),
        (INVOCATIONS, {"best_of": 3}, "parameters.best_of"),
    ],
)
def test_a_refusal_of_too_many_outputs_names_the_field_that_determines_their_number(
    path: str, body: dict[str, Any], field: str, client: FlaskClient, engine: FakeEngine
) -> None:
    refusal = TooManyOutputs("given 3 outputs in one request; accepted: at most 2")
    engine.script = lambda request: tokens(request, [], refusal)
    reply = post(client, path, **body)
    assert refusal_of(reply) == f"{field}: {refusal}"
    error = reply.get_json()["error"]
    assert path == INVOCATIONS or (error["param"], error["code"]) == (field, "invalid_request")


def test_seeds_of_choices_are_stable() -> None:
    assert choice_seed(11, 1) == 17564306983642144096
    assert choice_seed(2**64 - 1, 7) < 2**64


@pytest.mark.parametrize("seed", [-2, -(2**63)])
def test_a_negative_seed_is_taken_modulo_2_to_the_64(
    seed: int, client: FlaskClient, engine: FakeEngine
) -> None:
    for path in BODIES:
        assert post(client, path, seed=seed, temperature=1).status_code == 200
        assert engine.sampling.seed == seed + 2**64
    assert post(client, CHAT, seed=seed, temperature=1, n=2).status_code == 200
    assert engine.sampling.seed == choice_seed(seed + 2**64, 1)


def test_seed_minus_1_is_a_random_seed(client: FlaskClient, engine: FakeEngine) -> None:
    for _ in range(2):
        post(client, CHAT, seed=-1, temperature=1)
    first, second = (request.sampling.seed for request in engine.requests)
    assert first != second


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_chat_choices_whole_and_streamed(path: str, client: FlaskClient) -> None:
    whole = client.post(path, json={**BODIES[CHAT], "n": 3}).get_json()
    expected = [
        {
            "index": index,
            "message": {"role": "assistant", "content": word},
            "logprobs": None,
            "finish_reason": "length",
        }
        for index, word in enumerate(WORDS[:3])
    ]
    assert whole["choices"] == expected
    records = chunks(client.post(path, json={**BODIES[CHAT], "n": 3, "stream": True}))
    deltas = [record["choices"][0] for record in records]
    assert [delta["index"] for delta in deltas[:3]] == [0, 1, 2]
    assert all(delta["delta"] == {"role": "assistant", "content": ""} for delta in deltas[:3])
    for index, word in enumerate(WORDS[:3]):
        own = [delta for delta in deltas if delta["index"] == index]
        assert "".join(delta["delta"].get("content", "") for delta in own) == word
        assert [delta["finish_reason"] for delta in own][-1] == "length"


def test_streamed_completion_chunks_have_the_index_of_their_choice(client: FlaskClient) -> None:
    body = {"prompt": ["Hello", "Hi"], "n": 2, "stream": True, "echo": True}
    texts: dict[int, str] = {}
    for record in chunks(client.post("/v1/completions", json=body)):
        (choice,) = record["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "Helloone", 1: "Hellotwo", 2: "Hithree", 3: "Hifour"}


def test_an_echoed_prompt_of_token_ids_is_decoded_once_for_all_choices(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(encode(text)) for text in ("Hello there", "Hi there")]
    decoded: list[list[int]] = []
    decode = TextModel.decode

    def decode_and_record(
        model: TextModel, token_ids: Sequence[int], skip_special_tokens: bool = True
    ) -> str:
        decoded.append(list(token_ids))
        return decode(model, token_ids, skip_special_tokens)

    monkeypatch.setattr(TextModel, "decode", decode_and_record)
    reply = client.post("/v1/completions", json={"prompt": prompts, "n": 2, "echo": True}).get_json()
    assert [choice["text"] for choice in reply["choices"]] == [
        "Hello thereone",
        "Hello theretwo",
        "Hi therethree",
        "Hi therefour",
    ]
    assert [ids for ids in decoded if ids in prompts] == prompts


@pytest.mark.parametrize(
    ("path", "parameters", "num_chars"),
    [
        (COMPLETIONS, {"echo": True, "n": 8}, 8 * len(PROMPT)),
        (COMPLETIONS, {"echo": True, "n": 8, "stream": True}, 8 * len(PROMPT)),
        (COMPLETIONS, {"prompt": [encode(PROMPT)] * 2, "echo": True}, 2 * len(PROMPT)),
        (COMPLETIONS, {"return_token_ids": True, "n": 8}, 8 * 8 * len(encode(PROMPT))),
        (INVOCATIONS, {"return_full_text": True}, len(PROMPT)),
        (INVOCATIONS, {"n": 8, "do_sample": True}, 8 * len(PROMPT)),
    ],
)
def test_answers_that_repeat_the_prompt_too_often_are_refused(
    path: str,
    parameters: dict[str, Any],
    num_chars: int,
    client: FlaskClient,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small request could make a response of a thousand times its size."""
    monkeypatch.setattr(combinations, "MAX_REPEATED_CHARS", num_chars)
    assert post(client, path, **parameters).status_code == 200
    monkeypatch.setattr(combinations, "MAX_REPEATED_CHARS", num_chars - 1)
    engine.requests.clear()
    text = refusal_of(post(client, path, **parameters))
    assert text.startswith("inputs: " if path == INVOCATIONS else "prompt: ")
    assert text.endswith(f"makes {num_chars} characters; accepted: at most {num_chars - 1} in one response")
    assert not engine.requests


def test_answers_without_the_prompt_are_not_limited_by_its_length(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combinations, "MAX_REPEATED_CHARS", 0)
    assert post(client, COMPLETIONS, n=8).status_code == 200
    assert post(client, CHAT, n=8).status_code == 200
    assert post(client, INVOCATIONS).status_code == 200


def test_best_of_returns_the_most_likely_choices_first(client: FlaskClient, engine: FakeEngine) -> None:
    body = {"prompt": "Hello", "n": 2, "best_of": 4}
    reply = client.post("/v1/completions", json=body).get_json()
    choices = reply["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "four"), (1, "two")]
    assert all(choice["logprobs"] is None for choice in choices)
    assert all(request.sampling.logprobs for request in engine.requests)
    assert len(engine.requests) == 4
    generated = reply["usage"]["completion_tokens"]
    assert generated == sum(len(encode(word)) for word in WORDS[:4]), "discarded tokens count too"


def test_best_of_compares_mean_log_probabilities(client: FlaskClient, engine: FakeEngine) -> None:
    def script(request: Request) -> list[RequestOutput]:
        if request.id.endswith("-0"):
            return tokens(request, encode("seven eight nine ten"), logprob=-0.4)
        return tokens(request, encode("a"), logprob=-0.5)

    engine.script = script
    reply = client.post("/v1/completions", json={"prompt": "Hello", "best_of": 2})
    assert reply.get_json()["choices"][0]["text"] == "seven eight nine ten"


@pytest.mark.parametrize("name", ["n", "best_of"])
def test_lmi_returns_the_most_likely_choice_and_the_others_in_details(name: str, client: FlaskClient) -> None:
    body = post(client, INVOCATIONS, **{name: 3}, do_sample=True, return_full_text=True).get_json()
    assert body["generated_text"] == PROMPT + "two"
    details = body["details"]
    assert details["finish_reason"] == "length"
    assert [token["log_prob"] for token in details["tokens"]] == [-1.0] * details["generated_tokens"]
    others = details["best_of_sequences"]
    assert [other["generated_text"] for other in others] == [PROMPT + "three", PROMPT + "one"]
    assert {tuple(other) for other in others} == {
        ("generated_text", "finish_reason", "generated_tokens", "inputs", "tokens")
    }


def test_lmi_best_of_returns_all_choices_without_n_and_the_best_n_with_it(client: FlaskClient) -> None:
    details = post(client, INVOCATIONS, best_of=3).get_json()["details"]
    assert len(details["best_of_sequences"]) == 2
    body = post(client, INVOCATIONS, best_of=4, n=2).get_json()
    assert body["generated_text"] == "four"
    assert [other["generated_text"] for other in body["details"]["best_of_sequences"]] == ["two"]
    assert "best_of_sequences" not in post(client, INVOCATIONS, best_of=4, n=1).get_json()["details"]
    assert post(client, INVOCATIONS, best_of=1, n=1).get_json() == {"generated_text": "one"}


def test_engine_python_accepts_lists_with_n(make_client: MakeClient) -> None:
    body = {"inputs": ["Hello", "Hi"], "parameters": {"n": 2}}
    first, second = make_client(engine_kind="Python").post("/invocations", json=body).get_json()
    assert (first["generated_text"], second["generated_text"]) == ("two", "four")
    assert [other["generated_text"] for other in second["details"]["best_of_sequences"]] == ["three"]


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
def test_openai_choices_keep_their_order_without_a_larger_best_of(path: str, client: FlaskClient) -> None:
    body = {"prompt": "Hello", "n": 2, "best_of": 2}
    choices = client.post(path, json=body).get_json()["choices"]
    assert [choice["text"] for choice in choices] == ["one", "two"]


def test_a_failed_choice_fails_the_request(client: FlaskClient, engine: FakeEngine) -> None:
    def script(request: Request) -> list[RequestOutput]:
        error = RequestFailed("not a number") if request.id.endswith("-1") else FinishReason.LENGTH
        return tokens(request, encode("one two three four"), error, per_step=2)

    engine.script = script
    reply = post(client, INVOCATIONS, n=3)
    assert reply.status_code == 424
    assert reply.get_json()["error"] == "not a number"
    assert engine.requests[1].id not in engine.aborted
    assert set(engine.aborted) <= {engine.requests[0].id, engine.requests[2].id}


def test_only_the_first_choice_computes_log_probabilities_of_the_prompt(
    client: FlaskClient, engine: FakeEngine
) -> None:
    """The other choices share its pages. The list is in the answer although another choice is the best one."""
    body = {"prompt": "Hello", "best_of": 4, "prompt_logprobs": 0}
    (choice,) = client.post("/v1/completions", json=body).get_json()["choices"]
    assert choice["text"] == "four"
    assert len(choice["prompt_logprobs"]) == len(encode("Hello")) > 1
    requests = engine.requests
    assert [request.sampling.prompt_logprobs for request in requests] == [0, None, None, None]
    assert [request.same_prompt_as for request in requests] == ["", *[requests[0].id] * 3]


@pytest.mark.parametrize("stream", [False, True])
def test_choices_may_be_faster_than_the_one_that_reports_the_prompt(
    stream: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    """The first choice of each prompt starts when all others have ended."""

    def read() -> dict[int, tuple[str, list[float | None]]]:
        body = {"prompt": ["Hello", "Hi there"], "n": 3, "echo": True, "logprobs": 1, "stream": stream}
        reply = client.post("/v1/completions", json=body)
        records = chunks(reply) if stream else [reply.get_json()]
        found: dict[int, tuple[str, list[float | None]]] = {}
        for choice in (choice for record in records for choice in record["choices"]):
            text, logprobs = found.get(choice["index"], ("", []))
            found[choice["index"]] = text + choice["text"], logprobs + choice["logprobs"]["token_logprobs"]
        return found

    def script(request: Request) -> list[RequestOutput]:
        return tokens(request, encode(" one two three"))

    def late_script(request: Request) -> Iterator[RequestOutput | Event]:
        if request.sampling.prompt_logprobs is not None:
            yield others_ended
            num_before.append(len(ended))
        yield from script(request)
        ended.append(request.id)
        if len(ended) == 4:
            others_ended.set()

    others_ended, ended, num_before = Event(), list[str](), list[int]()
    engine.script = script
    expected = read()
    engine.script = late_script
    assert read() == expected
    assert num_before == [4, 4]
    for index, (text, logprobs) in expected.items():
        prompt = "Hello" if index < 3 else "Hi there"
        assert text == f"{prompt} one two three"
        assert logprobs[: len(encode(prompt))] == [None, *(-float(i) for i in range(1, len(encode(prompt))))]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_one_token_has_no_log_probabilities_to_wait_for(
    stream: bool, client: FlaskClient, engine: FakeEngine
) -> None:
    body = {"prompt": [[5]], "n": 2, "echo": True, "logprobs": 1, "stream": stream}
    reply = client.post("/v1/completions", json=body)
    records = chunks(reply) if stream else [reply.get_json()]
    firsts = {
        choice["index"]: choice["logprobs"]["token_logprobs"][0]
        for record in reversed(records)
        for choice in record["choices"]
    }
    assert firsts == {0: None, 1: None}
