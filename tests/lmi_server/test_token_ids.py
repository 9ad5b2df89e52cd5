"""vLLM's `return_token_ids`: the token ids of prompts and answers."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from engines.core import FinishReason
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import PROMPT
from tests.lmi_server.conftest import ANSWER
from tests.lmi_server.fakes import FakeEngine, chunks, encode, tokens

PROMPTS = ["one two three", "four five", "six"]
CHAT = {"messages": [{"role": "user", "content": "one two three"}]}


def test_each_choice_has_the_ids_of_its_prompt_and_its_tokens(
    client: FlaskClient, echoing: FakeEngine
) -> None:
    fields = {"prompt": PROMPTS, "n": 2, "temperature": 1.0, "return_token_ids": True}
    body = client.post("/v1/completions", json=fields).get_json()
    ids = [list(encode(prompt)) for prompt in PROMPTS for _ in range(2)]
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == ids
    assert [choice["token_ids"] for choice in body["choices"]] == ids


def test_the_first_chunk_of_a_choice_has_the_ids_of_its_prompt(
    client: FlaskClient, echoing: FakeEngine
) -> None:
    fields = {"prompt": PROMPTS, "stream": True, "return_token_ids": True, "ignore_eos": True}
    found: dict[int, list[int]] = {}
    for chunk in chunks(client.post("/v1/completions", json=fields)):
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert ("prompt_token_ids" in choice) == (index not in found)
        if index not in found:
            assert choice["prompt_token_ids"] == list(encode(PROMPTS[index]))
        found.setdefault(index, []).extend(choice["token_ids"])
    assert found == {index: list(encode(prompt)) for index, prompt in enumerate(PROMPTS)}


def test_a_token_that_ends_the_text_has_an_id(client: FlaskClient, text_model: TextModel) -> None:
    """As in vLLM, all generated tokens are listed, those of a stop string too."""
    stop = ANSWER.split()[1]
    fields = {"prompt": PROMPT, "stop": [stop], "return_token_ids": True}
    (choice,) = client.post("/v1/completions", json=fields).get_json()["choices"]
    assert stop not in choice["text"]
    found = choice["token_ids"]
    assert found == list(encode(ANSWER))[: len(found)]
    assert stop in text_model.decode(found, False)


def listed(choices: list[dict[str, Any]]) -> tuple[list[int], list[str], list[int]]:
    """Return the token ids, the tokens and the offsets that the choice of all chunks, or of a whole answer, lists."""
    ids, names, offsets = [], [], []
    for choice in choices:
        logprobs = choice["logprobs"] or {"tokens": [], "text_offset": []}
        new = logprobs["tokens"] if "tokens" in logprobs else [one["token"] for one in logprobs["content"]]
        assert len(choice["token_ids"]) == len(new)
        ids += choice["token_ids"]
        names += new
        offsets += logprobs.get("text_offset", ())
    return ids, names, offsets


@pytest.mark.parametrize(
    ("stop", "num_tokens"),
    [
        ({"stop": "France is"}, len(encode("The capital of France is"))),
        ({"stop": "nce", "include_stop_str_in_output": True}, len(encode("The capital of France"))),
        ({"stop": "France was"}, len(encode(ANSWER))),
        ({"stop_token_ids": [encode(ANSWER)[3]]}, 4),
    ],
)
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("completions", {"prompt": PROMPT, "logprobs": 1}),
        ("completions", {"prompt": PROMPT, "logprobs": 1, "stream": True}),
        ("chat/completions", {**CHAT, "logprobs": True}),
        ("chat/completions", {**CHAT, "logprobs": True, "stream": True}),
    ],
)
def test_each_token_id_has_a_log_probability(
    client: FlaskClient,
    engine: FakeEngine,
    path: str,
    fields: dict[str, Any],
    stop: dict[str, Any],
    num_tokens: int,
) -> None:
    """In each chunk too, and also for the tokens that a stop cuts off."""
    end = FinishReason.EOS_TOKEN if "stop_token_ids" in stop else FinishReason.LENGTH
    engine.script = lambda request: tokens(request, encode(ANSWER)[:num_tokens], end)
    reply = client.post(f"/v1/{path}", json={**fields, **stop, "return_token_ids": True})
    records = chunks(reply)[1 if "messages" in fields else 0 :] if "stream" in fields else [reply.get_json()]
    choices = [record["choices"][0] for record in records]
    ids, names, offsets = listed(choices)
    assert ids == list(encode(ANSWER))[:num_tokens]
    assert ANSWER.startswith("".join(names))
    if path == "completions":
        text = "".join(choice["text"] for choice in choices)
        assert offsets == sorted(offsets)
        assert offsets == [min(len("".join(names[:index])), len(text)) for index in range(num_tokens)]


def test_a_chat_has_the_ids_of_the_rendered_prompt(client: FlaskClient, engine: FakeEngine) -> None:
    body = client.post("/v1/chat/completions", json={**CHAT, "return_token_ids": True}).get_json()
    assert body["prompt_token_ids"] == list(engine.requests[0].prompt_token_ids)
    assert body["choices"][0]["token_ids"] == list(encode(ANSWER))


def test_the_first_chunk_of_a_chat_has_the_ids_of_its_prompt(client: FlaskClient, engine: FakeEngine) -> None:
    fields = {**CHAT, "stream": True, "return_token_ids": True}
    first, *others = chunks(client.post("/v1/chat/completions", json=fields))
    assert first["prompt_token_ids"] == list(engine.requests[0].prompt_token_ids)
    assert not any("prompt_token_ids" in chunk for chunk in others)
    ids = [token for chunk in others for choice in chunk["choices"] for token in choice["token_ids"]]
    assert ids == list(encode(ANSWER))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"), [("completions", {"prompt": PROMPT}), ("chat/completions", CHAT)]
)
def test_there_are_no_ids_unless_requested(
    client: FlaskClient, path: str, fields: dict[str, object], stream: bool
) -> None:
    reply = client.post(f"/v1/{path}", json={**fields, "stream": stream, "return_token_ids": False})
    assert "token_ids" not in reply.get_data(as_text=True)


def test_inputs_refuse_it(client: FlaskClient) -> None:
    body = {"inputs": PROMPT, "parameters": {"return_token_ids": True}}
    reply = client.post("/invocations", json=body)
    assert reply.status_code == 424
    assert "details have their ids" in reply.get_json()["error"]
