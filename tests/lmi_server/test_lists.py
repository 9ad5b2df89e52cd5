"""engine=Python on `/invocations`: the answer is a list with one element for each prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import AbortReason, FinishReason, Request, RequestOutput
from engines.errors import DeadlineExceeded, Overloaded, RequestFailed
from lmi_server.apis import prompts
from lmi_server.config import ServerConfig
from tests.lmi_server.bodies import refusal_of
from tests.lmi_server.conftest import ANSWER, Connection, MakeClient
from tests.lmi_server.fakes import MAX_MODEL_LEN, FakeEngine, encode, tokens
from tests.support.logs import Logs

PROMPTS = ["one two three", "four five", "six"]


@pytest.fixture
def client(make_client: MakeClient) -> FlaskClient:
    return make_client(engine_kind="Python")


def post(client: FlaskClient, inputs: Any, **fields: Any) -> TestResponse:
    return client.post("/invocations", json={"inputs": inputs, **fields})


def test_the_answer_to_a_string_is_a_list_of_one_element(client: FlaskClient) -> None:
    assert post(client, "Hello").get_json() == [{"generated_text": ANSWER}]
    assert post(client, ["Hello"]).get_json() == [{"generated_text": ANSWER}]


def test_elements_are_in_the_order_of_the_prompts(client: FlaskClient, echoing: FakeEngine) -> None:
    reply = post(client, PROMPTS, parameters={"details": True})
    assert reply.status_code == 200
    assert [element["generated_text"] for element in reply.get_json()] == PROMPTS
    assert [element["details"]["inputs"] for element in reply.get_json()] == PROMPTS
    full = post(client, PROMPTS, parameters={"return_full_text": True}).get_json()
    assert [element["generated_text"] for element in full] == [prompt * 2 for prompt in PROMPTS]


def test_prompts_are_submitted_together_as_separate_requests(
    client: FlaskClient, echoing: FakeEngine
) -> None:
    parameters = {"max_new_tokens": 9, "do_sample": True, "seed": 7, "stop": "x"}
    reply = client.post(
        "/invocations",
        json={"inputs": PROMPTS, "parameters": parameters},
        headers={"x-request-id": "my-label"},
    )
    assert reply.headers["x-request-id"] == "my-label"
    assert echoing.submissions == [3]
    assert [r.prompt_token_ids for r in echoing.requests] == [encode(p) for p in PROMPTS]
    assert len({r.id for r in echoing.requests}) == 3
    assert "my-label" not in "".join(r.id for r in echoing.requests)
    assert len({r.sampling for r in echoing.requests}) == 1
    assert echoing.requests[0].sampling.seed == 7


def test_the_tokens_of_all_prompts_are_limited(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_PROMPT_TOKENS", 2 * MAX_MODEL_LEN)
    prompt = "x" * (MAX_MODEL_LEN // 2)
    assert post(client, [prompt] * 4).status_code == 200
    error = refusal_of(post(client, [prompt] * 5))
    assert error == "inputs[4]: with it the prompts have 640 tokens; accepted: at most 512 in one request"
    assert post(client, [prompt] * 5, parameters={"truncate": 100}).status_code == 200


def test_prompts_without_a_seed_get_different_seeds(client: FlaskClient, echoing: FakeEngine) -> None:
    post(client, ["same", "same"], parameters={"do_sample": True})
    assert len({request.sampling.seed for request in echoing.requests}) == 2


LONG = "six seven eight nine ten 0123456789 and the capital of Italy is Rome"


def test_each_prompt_has_its_own_finish_reason(client: FlaskClient, engine: FakeEngine) -> None:
    def script(request: Request) -> list[RequestOutput]:
        if request.prompt_token_ids == encode(PROMPTS[0]):
            return tokens(request, [*encode(LONG), 2], FinishReason.EOS_TOKEN)
        return tokens(request, encode("two stop three four five"))

    engine.script = script
    reply = post(client, PROMPTS[:2], parameters={"details": True, "stop": " stop"})
    first, second = reply.get_json()
    assert (first["generated_text"], second["generated_text"]) == (LONG, "two")
    assert first["details"]["finish_reason"] == "eos_token"
    assert second["details"]["finish_reason"] == "stop_sequence"
    # The second prompt is aborted at its stop string, while the first one continues. Later outputs are dropped.
    assert engine.aborted == [engine.requests[1].id]


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestFailed("not a number"), 424), (Overloaded("the queue is full"), 503)],
)
def test_a_failed_prompt_fails_the_request_and_aborts_the_others(
    error: Any, status: int, client: FlaskClient, engine: FakeEngine
) -> None:
    never = threading.Event()

    def script(request: Request) -> Iterable[RequestOutput | threading.Event]:
        if request.prompt_token_ids == encode(PROMPTS[1]):
            return tokens(request, [], error)
        return [*tokens(request, encode("one"), None), never]

    engine.script = script
    reply = post(client, PROMPTS)
    assert reply.status_code == status
    assert reply.get_json()["error"] == f"inputs[1]: {error}"
    first, _, third = engine.requests
    assert sorted(engine.aborted) == sorted([first.id, third.id])
    assert engine.abort_reasons == [AbortReason.FAILED] * 2


def test_a_client_disconnect_aborts_all_prompts(
    client: FlaskClient, engine: FakeEngine, logs: Logs, connection: Connection
) -> None:
    engine.script = lambda request: [*tokens(request, encode("one"), None), threading.Event()]
    server, peer = connection
    peer.close()
    client.post(
        "/invocations",
        json={"inputs": PROMPTS},
        environ_overrides={"gunicorn.socket": server},
        buffered=True,
    )
    assert sorted(engine.aborted) == sorted(request.id for request in engine.requests)
    assert "finish=client_gone" in logs.text


def test_the_log_line_counts_all_prompts(client: FlaskClient, echoing: FakeEngine, logs: Logs) -> None:
    post(client, PROMPTS).close()
    total = sum(len(encode(prompt)) for prompt in PROMPTS)
    assert f"prompts=3 prompt_tokens={total} generated_tokens={total} " in logs.text
    assert "finish=length" in logs.text


@pytest.mark.parametrize("server", [ServerConfig(), ServerConfig(output_formatter="sse")])
def test_a_stream_supports_only_one_prompt(
    server: ServerConfig, make_client: MakeClient, engine: FakeEngine
) -> None:
    client = make_client(server, engine_kind="Python")
    lines = post(client, ["Hello"], stream=True).text.split("\n")
    records = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert records[-1]["generated_text"] == ANSWER
    refusal = refusal_of(post(client, PROMPTS, stream=True))
    assert "inputs: given 3 prompts with a streamed answer" in refusal
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("inputs", "mentions"),
    [
        ([], ["inputs", "[]", "1 to 1024"]),
        (["Hello", ""], ["inputs[1]", '""', "not empty"]),
        (["Hello", 5], ["inputs[1]", "5", "a string"]),
        ([["Hello"]], ["inputs[0]", "a string"]),
        (["Hello"] * 1025, ["inputs", "1025", "1024"]),
        (["Hello", "word " * 2000], ["inputs[1]", "option.max_model_len"]),
        (7, ["inputs", "7", "a list of 1 to 1024"]),
    ],
)
def test_invalid_lists_are_refused(
    inputs: Any, mentions: list[str], client: FlaskClient, engine: FakeEngine
) -> None:
    refusal = refusal_of(post(client, inputs))
    for mention in mentions:
        assert mention in refusal
    assert engine.requests == []


def test_the_maximum_number_of_prompts_is_accepted(client: FlaskClient, echoing: FakeEngine) -> None:
    prompts = [f"number {n}" for n in range(1024)]
    reply = post(client, prompts)
    assert [element["generated_text"] for element in reply.get_json()] == prompts


def test_the_engine_enforces_the_timeout_of_a_batch(make_client: MakeClient, engine: FakeEngine) -> None:
    """The web process sets no deadline under engine=Python, because it does not know when the batch started."""
    gate = threading.Event()
    engine.script = lambda request: [gate, *tokens(request, encode("one"))]
    client = make_client(ServerConfig(predict_timeout=0.05), engine_kind="Python")
    threading.Timer(0.3, gate.set).start()
    assert post(client, "Hello").get_json() == [{"generated_text": "one"}]
    late = DeadlineExceeded("the batch took longer than 0.05 s (option.predict_timeout)")
    engine.script = lambda request: tokens(request, encode("one"), late)
    reply = post(client, "Hello")
    assert reply.status_code == 504
    assert reply.get_json()["error"] == str(late)
    stream = post(client, "Hello", stream=True)
    assert json.loads(stream.text.splitlines()[-1]) == {"error": str(late), "code": 424}
