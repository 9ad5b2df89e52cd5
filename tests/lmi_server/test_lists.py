"""engine=Python on `/invocations`: an array with one element a prompt, for one prompt or several."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from engines.core import AbortReason, FinishReason, Request, RequestOutput
from engines.errors import DeadlineExceeded, Overloaded, RequestFailed
from lmi_server.config import ServerConfig
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import ANSWER, MakeClient
from tests.lmi_server.fakes import FakeEngine, tokens

PROMPTS = ["one two three", "four five", "six"]


@pytest.fixture
def dynamic(make_client: MakeClient) -> FlaskClient:
    return make_client(engine_kind="Python")


def post(client: FlaskClient, inputs: Any, **fields: Any) -> TestResponse:
    return client.post("/invocations", json={"inputs": inputs, **fields})


def test_one_string_is_answered_with_one_element(dynamic: FlaskClient) -> None:
    assert post(dynamic, "Hello").get_json() == [{"generated_text": ANSWER}]
    assert post(dynamic, ["Hello"]).get_json() == [{"generated_text": ANSWER}]


def test_each_prompt_has_its_element_in_order(dynamic: FlaskClient, echoing: FakeEngine) -> None:
    reply = post(dynamic, PROMPTS, parameters={"details": True})
    assert reply.status_code == 200
    assert [element["generated_text"] for element in reply.get_json()] == PROMPTS
    assert [element["details"]["inputs"] for element in reply.get_json()] == PROMPTS
    full = post(dynamic, PROMPTS, parameters={"return_full_text": True}).get_json()
    assert [element["generated_text"] for element in full] == [prompt * 2 for prompt in PROMPTS]


def test_they_are_submitted_together_as_requests_of_their_own(
    dynamic: FlaskClient, echoing: FakeEngine, text_model: TextModel
) -> None:
    parameters = {"max_new_tokens": 9, "do_sample": True, "seed": 7, "stop": "x"}
    reply = dynamic.post(
        "/invocations",
        json={"inputs": PROMPTS, "parameters": parameters},
        headers={"x-request-id": "my-label"},
    )
    assert reply.headers["x-request-id"] == "my-label"
    assert echoing.submissions == [3]
    assert [r.prompt_token_ids for r in echoing.requests] == [text_model.encode(p) for p in PROMPTS]
    assert len({r.id for r in echoing.requests}) == 3
    assert "my-label" not in "".join(r.id for r in echoing.requests)
    assert len({r.sampling for r in echoing.requests}) == 1
    assert echoing.requests[0].sampling.seed == 7


def test_without_a_seed_each_prompt_has_its_own(dynamic: FlaskClient, echoing: FakeEngine) -> None:
    post(dynamic, ["same", "same"], parameters={"do_sample": True})
    assert len({request.sampling.seed for request in echoing.requests}) == 2


LONG = "six seven eight nine ten 0123456789 and the capital of Italy is Rome"


def test_each_ends_in_its_own_way(dynamic: FlaskClient, engine: FakeEngine, text_model: TextModel) -> None:
    def script(request: Request) -> list[RequestOutput]:
        if request.prompt_token_ids == text_model.encode(PROMPTS[0]):
            return tokens(request, [*text_model.encode(LONG), 2], FinishReason.EOS_TOKEN)
        return tokens(request, text_model.encode("two stop three four five"))

    engine.script = script
    reply = post(dynamic, PROMPTS[:2], parameters={"details": True, "stop": " stop"})
    first, second = reply.get_json()
    assert (first["generated_text"], second["generated_text"]) == (LONG, "two")
    assert first["details"]["finish_reason"] == "eos_token"
    assert second["details"]["finish_reason"] == "stop_sequence"
    # The script goes on after the stop string, and the other prompt longer still: what comes then is nobody's.
    assert engine.aborted == [engine.requests[1].id]


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestFailed("not a number"), 424), (Overloaded("the queue is full"), 503)],
)
def test_one_that_fails_fails_the_request_and_stops_the_others(
    error: Any, status: int, dynamic: FlaskClient, engine: FakeEngine, text_model: TextModel
) -> None:
    never = threading.Event()

    def script(request: Request) -> Iterable[RequestOutput | threading.Event]:
        if request.prompt_token_ids == text_model.encode(PROMPTS[1]):
            return tokens(request, [], error)
        return [*tokens(request, text_model.encode("one"), None), never]

    engine.script = script
    reply = post(dynamic, PROMPTS)
    assert reply.status_code == status
    assert reply.get_json()["error"] == f"inputs[1]: {error}"
    first, _, third = engine.requests
    assert sorted(engine.aborted) == sorted([first.id, third.id])
    assert engine.abort_reasons == [AbortReason.FAILED] * 2


def test_a_client_that_leaves_frees_all_of_them(
    dynamic: FlaskClient, engine: FakeEngine, text_model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = lambda request: [*tokens(request, text_model.encode("one"), None), threading.Event()]
    server, client = socket.socketpair()
    client.close()
    with server, caplog.at_level("INFO"):
        dynamic.post(
            "/invocations",
            json={"inputs": PROMPTS},
            environ_overrides={"gunicorn.socket": server},
            buffered=True,
        )
    assert sorted(engine.aborted) == sorted(request.id for request in engine.requests)
    assert "finish=client_gone" in caplog.text


def test_the_log_line_counts_all_of_them(
    dynamic: FlaskClient, echoing: FakeEngine, text_model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        post(dynamic, PROMPTS).close()
    total = sum(len(text_model.encode(prompt)) for prompt in PROMPTS)
    assert f"prompts=3 prompt_tokens={total} generated_tokens={total} " in caplog.text
    assert "finish=length" in caplog.text


@pytest.mark.parametrize("server", [ServerConfig(), ServerConfig(output_formatter="sse")])
def test_a_stream_has_one_prompt(
    server: ServerConfig, make_client: MakeClient, engine: FakeEngine, text_model: TextModel
) -> None:
    client = make_client(server, engine_kind="Python")
    lines = post(client, ["Hello"], stream=True).text.split("\n")
    records = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert records[-1]["generated_text"] == ANSWER
    refused = post(client, PROMPTS, stream=True)
    assert refused.status_code == 424
    assert "inputs: given 3 prompts with a streamed answer" in refused.get_json()["error"]
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("inputs", "mentions"),
    [
        ([], ["inputs", "[]", "1 to 128"]),
        (["Hello", ""], ["inputs[1]", '""', "not empty"]),
        (["Hello", 5], ["inputs[1]", "5", "a string"]),
        ([["Hello"]], ["inputs[0]", "a string"]),
        (["Hello"] * 129, ["inputs", "129", "128"]),
        (["Hello", "word " * 2000], ["inputs[1]", "option.max_model_len"]),
        (7, ["inputs", "7", "a list of 1 to 128"]),
    ],
)
def test_bad_lists_are_refused_by_name(
    inputs: Any, mentions: list[str], dynamic: FlaskClient, engine: FakeEngine
) -> None:
    reply = post(dynamic, inputs)
    assert reply.status_code == 424
    for mention in mentions:
        assert mention in reply.get_json()["error"]
    assert engine.requests == []


def test_as_many_prompts_as_are_accepted(dynamic: FlaskClient, echoing: FakeEngine) -> None:
    prompts = [f"number {n}" for n in range(128)]
    reply = post(dynamic, prompts)
    assert [element["generated_text"] for element in reply.get_json()] == prompts


def test_engine_mpi_says_who_takes_lists(client: FlaskClient, engine: FakeEngine) -> None:
    reply = post(client, PROMPTS)
    assert reply.status_code == 424
    error = reply.get_json()["error"]
    assert "accepted: a string" in error
    assert "engine=Python takes lists" in error
    assert engine.requests == []


def test_the_engine_watches_the_time_of_a_batch(
    make_client: MakeClient, engine: FakeEngine, text_model: TextModel
) -> None:
    """The web process has no deadline of its own under engine=Python: it does not know when the batch began."""
    gate = threading.Event()
    engine.script = lambda request: [gate, *tokens(request, text_model.encode("one"))]
    client = make_client(ServerConfig(predict_timeout=0.05), engine_kind="Python")
    threading.Timer(0.3, gate.set).start()
    assert post(client, "Hello").get_json() == [{"generated_text": "one"}]
    late = DeadlineExceeded("the batch took longer than 0.05 s (option.predict_timeout)")
    engine.script = lambda request: tokens(request, text_model.encode("one"), late)
    reply = post(client, "Hello")
    assert reply.status_code == 504
    assert reply.get_json()["error"] == str(late)
    stream = post(client, "Hello", stream=True)
    assert json.loads(stream.text.splitlines()[-1]) == {"error": str(late), "code": 424}
