"""`/ping` and `/invocations` over real HTTP: whole answers, streams, chat, stops, seeds, errors."""

from __future__ import annotations

import json

import pytest

from tests.support.client import Answer, Client

pytestmark = [pytest.mark.e2e, pytest.mark.model]

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
STORY = "Once upon a time,"


def invoke(
    client: Client, inputs: str = STORY, *, headers: dict[str, str] | None = None, **body: object
) -> Answer:
    return client.post("/invocations", {"inputs": inputs, **body}, headers)


def records(answer: Answer) -> list[dict[str, object]]:
    """The records of a jsonlines answer; each line must have its end."""
    assert answer.body.endswith("\n")
    return [json.loads(line) for line in answer.body.removesuffix("\n").split("\n")]


def test_ping_is_200_when_the_engine_moves(client: Client) -> None:
    assert client.ping() == 200


def test_whole_answer_is_one_object_with_the_text_only(client: Client) -> None:
    answer = invoke(client, parameters={"max_new_tokens": 8})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert list(answer.json()) == ["generated_text"]
    assert answer.json()["generated_text"].strip()


def test_thirty_tokens_when_nothing_is_asked(client: Client) -> None:
    details = invoke(client, parameters={"details": True, "ignore_eos_token": True}).json()["details"]
    assert details["generated_tokens"] == 30
    assert details["finish_reason"] == "length"


def test_details_list_every_token_with_its_log_probability(client: Client) -> None:
    reply = invoke(client, parameters={"max_new_tokens": 6, "details": True}).json()
    details = reply["details"]
    assert details["generated_tokens"] == len(details["tokens"]) == 6
    assert all(token["log_prob"] <= 0 for token in details["tokens"])
    assert "".join(token["text"] for token in details["tokens"]) == reply["generated_text"]
    assert details["inputs"] == STORY


def test_stream_is_json_lines_and_ends_with_the_whole_text(client: Client) -> None:
    parameters = {"max_new_tokens": 10, "details": True}
    whole = invoke(client, parameters=parameters).json()
    answer = invoke(client, parameters=parameters, stream=True)
    assert answer.headers["content-type"].startswith("application/jsonlines")
    *_, last = got = records(answer)
    assert [record["token"]["id"] for record in got] == [t["id"] for t in whole["details"]["tokens"]]  # type: ignore[index]
    assert all("generated_text" not in record for record in got[:-1])
    assert last["generated_text"] == whole["generated_text"]
    assert last["details"]["finish_reason"] == "length"  # type: ignore[index]


def test_accept_event_stream_gives_data_blocks(client: Client) -> None:
    answer = invoke(client, parameters={"max_new_tokens": 5}, headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.body.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    got = [json.loads(block.removeprefix("data: ")) for block in blocks]
    assert len(got) == 5
    assert got[-1]["generated_text"]


def test_stream_wins_over_a_habitual_accept_header(client: Client) -> None:
    answer = invoke(
        client, parameters={"max_new_tokens": 3}, stream=True, headers={"Accept": "application/json"}
    )
    assert len(records(answer)) == 3


def test_stream_comes_token_by_token(client: Client) -> None:
    """The first record is here while the engine is still far from the last."""
    before = client.metrics()["lmi_tokens_generated_total"]
    body = {"inputs": STORY, "stream": True, "parameters": {"max_new_tokens": 60, "ignore_eos_token": True}}
    with client.call("POST", "/invocations", body) as call:
        lines = call.lines()
        next(lines)
        generated = client.metrics()["lmi_tokens_generated_total"] - before
        rest = list(lines)
    assert generated < 30
    assert len(rest) == 59


def test_chat_messages_get_openai_shapes(client: Client) -> None:
    answer = client.post("/invocations", {"messages": CAPITAL, "max_tokens": 32, "temperature": 0})
    assert answer.status == 200
    reply = answer.json()
    assert reply["object"] == "chat.completion"
    assert "Paris" in reply["choices"][0]["message"]["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert (
        reply["usage"]["total_tokens"]
        == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    )


def test_stop_sequence_ends_the_answer_before_it(client: Client) -> None:
    whole = client.generate(STORY, max_new_tokens=24).text
    stop = whole.split()[8]
    stopped = client.generate(STORY, max_new_tokens=24, stop_sequences=[stop])
    assert stopped.finish_reason == "stop_sequence"
    assert stopped.text == whole[: whole.index(stop)]
    assert len(stopped.token_ids) < 24


def test_eos_ends_an_answer_and_can_be_ignored(client: Client) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ended = client.generate(prompt, max_new_tokens=40)
    assert ended.finish_reason == "eos_token"
    assert "Paris" in ended.text
    ignored = client.generate(prompt, max_new_tokens=20, ignore_eos_token=True)
    assert ignored.finish_reason == "length"
    assert len(ignored.token_ids) == 20


def test_a_seed_decides_a_sampled_answer(client: Client) -> None:
    def sampled(seed: int) -> list[int]:
        asked = {"max_new_tokens": 16, "do_sample": True, "temperature": 1.0, "seed": seed}
        return client.generate(STORY, **asked).token_ids

    first, second, other = sampled(1), sampled(1), sampled(2)
    assert len(first) > 0
    assert first == second
    assert first != other


def test_top_k_of_one_is_greedy(client: Client) -> None:
    greedy = client.generate(STORY, max_new_tokens=12)
    narrow = client.generate(STORY, max_new_tokens=12, do_sample=True, temperature=1.5, top_k=1, seed=3)
    assert narrow.token_ids == greedy.token_ids


def test_repetition_penalty_changes_a_repetitive_answer(client: Client) -> None:
    prompt = "a b c a b c a b c a b c"
    plain = client.generate(prompt, max_new_tokens=12).token_ids
    penalised = client.generate(prompt, max_new_tokens=12, repetition_penalty=2.0).token_ids
    assert len(set(penalised)) > len(set(plain))


@pytest.mark.parametrize("header", ["X-Amzn-SageMaker-Inference-Id", "x-request-id"])
def test_the_clients_id_is_echoed(client: Client, header: str) -> None:
    answer = invoke(client, parameters={"max_new_tokens": 1}, headers={header: "my-id-7"})
    assert answer.headers["x-request-id"] == "my-id-7"


def test_an_id_is_made_when_none_is_given(client: Client) -> None:
    answers = [invoke(client, parameters={"max_new_tokens": 1}) for _ in range(2)]
    first, second = (answer.headers["x-request-id"] for answer in answers)
    assert first
    assert first != second


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{not json", ["JSON"]),
        ({"parameters": {}}, ["inputs"]),
        ({"inputs": 5}, ["inputs", "5", "string"]),
        ({"inputs": "x", "parameters": {"max_new_tokens": 0}}, ["max_new_tokens", "0", "1"]),
        ({"inputs": "x", "parameters": {"temperature": -1}}, ["temperature", "-1", "0"]),
        ({"inputs": "x", "parameters": {"top_p": 1.5}}, ["top_p", "1.5", "1"]),
        ({"inputs": "x", "parameters": {"max_new_token": 4}}, ["max_new_token", "max_new_tokens"]),
        ({"inputs": "x", "parameters": {"typical_p": 1.5}}, ["typical_p", "1.5"]),
        ({"inputs": "word " * 9000}, ["inputs", "8192"]),
    ],
)
def test_a_bad_body_is_a_424_that_names_what_is_wrong(client: Client, body: object, named: list[str]) -> None:
    answer = client.post("/invocations", body)
    assert answer.status == 424
    assert answer.json()["code"] == 424
    for word in named:
        assert word in answer.json()["error"]


def test_unknown_paths_and_methods_are_client_errors(client: Client) -> None:
    assert client.get("/nowhere").status == 404
    assert client.get("/invocations").status == 405
