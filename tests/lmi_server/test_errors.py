"""Errors of the engine, timeouts and unknown paths, as clients see them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from engines.core import AbortReason, Request, RequestOutput
from engines.errors import (
    DeadlineExceeded,
    EngineDied,
    EngineError,
    InvalidRequest,
    Overloaded,
    RequestFailed,
    Unavailable,
)
from engines.health import EngineState, Health
from lmi_server.app import create_app
from lmi_server.config import ServerConfig
from lmi_server.generation.generation import TextGeneration
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.bodies import BODIES, error_of, post
from tests.lmi_server.conftest import MakeClient
from tests.lmi_server.fakes import FakeEngine, encode, says, tokens, web_config
from tests.lmi_server.malformed_bodies import CHAT
from tests.lmi_server.malformed_bodies import INVOCATIONS as LMI
from tests.support.logs import Logs

LATE = "the request took longer than 240 s (option.predict_timeout); 0 tokens were generated"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "lmi_status", "openai_status", "retry"),
    [
        (InvalidRequest("prompt: too odd"), 424, 400, False),
        (Overloaded("the queue is full (1000 waiting)"), 503, 429, True),
        (Unavailable("the server is shutting down"), 503, 503, True),
        (DeadlineExceeded(LATE), 504, 504, False),
        (RequestFailed("the step failed"), 424, 500, False),
        (EngineDied("rank 1 is gone"), 503, 503, True),
    ],
)
def test_an_error_before_the_first_byte_sets_the_status(
    error: EngineError,
    lmi_status: int,
    openai_status: int,
    retry: bool,
    stream: bool,
    client: FlaskClient,
    engine: FakeEngine,
) -> None:
    engine.script = lambda request: tokens(request, [], error)
    for path, status in ((LMI, lmi_status), (CHAT, openai_status)):
        reply = post(client, path, stream=stream)
        assert reply.status_code == status
        assert error_of(reply) == str(error)
        assert ("Retry-After" in reply.headers) is retry
        # OpenAI's clients would repeat it twice.
        final = path == CHAT and isinstance(error, DeadlineExceeded | RequestFailed)
        assert reply.headers.get("X-Should-Retry") == ("false" if final else None)
    assert engine.aborted == []


@pytest.mark.parametrize(
    ("path", "mention"),
    [
        ("/v1/responses", "use /v1/chat/completions"),
        ("/v1/embeddings", "embeddings are not supported"),
        ("/chat/completions", "OpenAI's API is under /v1"),
        ("/generate", "use /invocations"),
        ("/v1/nowhere", 'no such path (got "/v1/nowhere"); available: /invocations, /v1/chat/completions, '),
        ("/invocations/", 'no such path (got "/invocations/"); did you mean /invocations?'),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/chat/completions", "did you mean /v1/chat/completions?"),
        ("/" + "x" * 1000, "xxx...); available: "),
    ],
)
def test_paths_of_other_servers_are_named(path: str, mention: str, client: FlaskClient) -> None:
    reply = client.post(path, json={})
    assert reply.status_code == 404
    assert mention in error_of(reply)


def test_a_failed_lmi_stream_ends_with_an_error_record(client: FlaskClient, engine: FakeEngine) -> None:
    engine.script = says("one two", RequestFailed("the step failed"))
    reply = post(client, LMI, stream=True)
    assert reply.status_code == 200
    lines = reply.text.split("\n")
    assert lines[-1] == ""
    assert json.loads(lines[-2]) == {"error": "the step failed", "code": 424}
    assert "generated_text" not in reply.text
    assert post(client, LMI).status_code == 424
    sse = client.post(LMI, json=BODIES[LMI], headers={"Accept": "text/event-stream"})
    assert sse.text.endswith('data: {"error":"the step failed","code":424}\n\n')


@pytest.mark.parametrize("state", [s for s in EngineState if s is not EngineState.READY])
def test_requests_are_rejected_unless_the_engine_is_ready(
    state: EngineState, client: FlaskClient, engine: FakeEngine
) -> None:
    engine.state = Health(state, "because", 0.0)
    for path in (LMI, CHAT):
        reply = post(client, path)
        assert reply.status_code == 503
        assert engine.state.summary() in error_of(reply)
        assert "because" not in error_of(reply)  # requests do not show the cause
        assert int(reply.headers["Retry-After"]) > 0
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_times_out_is_aborted(
    stream: bool, make_client: MakeClient, engine: FakeEngine
) -> None:
    never = threading.Event()
    engine.script = lambda request: [never]
    reply = post(make_client(ServerConfig(predict_timeout=0.05)), LMI, stream=stream)
    assert reply.status_code == 504
    assert "0.05 s (option.predict_timeout)" in error_of(reply)
    assert engine.aborted == [engine.requests[0].id]
    assert engine.abort_reasons == [AbortReason.TIMEOUT]


@pytest.mark.parametrize("prompts", [("one",), ("one", "two")], ids=["one prompt", "two prompts"])
def test_a_timeout_names_its_limit_also_when_the_engine_is_first(
    prompts: tuple[str, ...], client: FlaskClient, engine: FakeEngine
) -> None:
    ended = DeadlineExceeded("the request timed out; 1 token was generated")

    def script(request: Request) -> Iterator[RequestOutput]:
        is_first = request is engine.requests[0]
        yield from tokens(request, encode("one")[:1] if is_first else (), ended if is_first else None)

    engine.script = script
    reply = client.post("/v1/completions", json={"prompt": prompts, "timeout": 60})
    assert reply.status_code == 504
    assert error_of(reply) == "the request took longer than 60 s (timeout); 1 token was generated"


def test_a_stream_that_times_out_is_aborted(
    make_client: MakeClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed = [0.0]
    clock = partial(TextGeneration, clock=lambda: time.monotonic() + elapsed[0])
    monkeypatch.setattr("lmi_server.apis.serve.TextGeneration", clock)

    def script(request: Request) -> Iterator[RequestOutput | threading.Event]:
        yield from tokens(request, encode("one"), None)
        elapsed[0] = 600.0
        yield threading.Event()

    engine.script = script
    reply = post(make_client(ServerConfig(predict_timeout=600)), LMI, stream=True)
    assert reply.status_code == 200
    last = json.loads(reply.text.splitlines()[-1])
    assert last["code"] == 424
    assert "option.predict_timeout" in last["error"]
    assert engine.aborted == [engine.requests[0].id]


@pytest.mark.parametrize("num_read", [0, 1])
def test_a_stream_that_is_closed_early_is_aborted(
    num_read: int, client: FlaskClient, engine: FakeEngine
) -> None:
    ids = encode("one two three")
    engine.script = lambda request: [*tokens(request, ids, None), threading.Event()]
    reply = post(client, LMI, stream=True)
    assert len(list(islice(reply.iter_encoded(), num_read))) == num_read
    reply.close()
    assert engine.aborted == [engine.requests[0].id]
    assert engine.abort_reasons == [AbortReason.CLIENT_LEFT]


@pytest.mark.parametrize("stream", [False, True])
def test_an_unexpected_error_reveals_no_internals(
    stream: bool, client: FlaskClient, engine: FakeEngine, logs: Logs
) -> None:
    def script(request: Request) -> Iterator[RequestOutput]:
        yield from tokens(request, encode("one"), None)
        raise ZeroDivisionError("secret detail")

    engine.script = script
    reply = post(client, LMI, stream=stream)
    assert reply.status_code == (200 if stream else 500)
    assert "internal error" in reply.text
    assert "secret" not in reply.text
    assert "Traceback" not in reply.text
    assert "secret detail" in logs.text
    assert engine.aborted == [engine.requests[0].id]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/nowhere", 404),
        ("GET", LMI, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/ping", 405),
        ("GET", "/predictions/test", 405),
    ],
)
def test_unknown_paths_and_methods_return_json(
    method: str, path: str, status: int, client: FlaskClient
) -> None:
    reply = client.open(path, method=method)
    assert reply.status_code == status
    body = reply.get_json()
    assert ("message" in body["error"]) if path.startswith("/v1/") else (body["code"] == status)
    assert "x-request-id" in reply.headers
    if status == 405:
        assert reply.headers["Allow"]


def test_chat_without_a_chat_template_is_refused(
    model_folder: Path, engine: FakeEngine, text_model: TextModel
) -> None:
    plain = replace(text_model, chat_template=None)
    reply = post(create_app(web_config(model_folder), engine, plain).test_client(), CHAT)
    assert reply.status_code == 400
    assert "no chat template" in error_of(reply)
