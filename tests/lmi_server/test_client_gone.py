"""Noticing that a client left, where no gevent is: by looking."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from engines.core import AbortReason
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.fakes import FakeEngine, tokens


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    server, client = socket.socketpair()
    with server, client:
        yield server, client


def test_a_client_that_waits_is_there(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not ClientWatch(pair[0]).left


def test_a_client_that_closed_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    assert ClientWatch(pair[0]).left


def test_a_client_that_sent_more_is_there_until_it_closes(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
    assert not ClientWatch(server).left
    client.close()
    assert ClientWatch(server).left
    assert server.recv(3) == b"GET"


def test_without_a_connection_nobody_leaves() -> None:
    assert not ClientWatch.of({}).left


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", ["", "one two"])
def test_the_engine_is_told(
    stream: bool,
    first: str,
    client: FlaskClient,
    engine: FakeEngine,
    text_model: TextModel,
    pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Waiting or running, streaming or not."""
    engine.script = lambda request: [*tokens(request, text_model.encode(first), None), threading.Event()]
    pair[1].close()
    with caplog.at_level("INFO"):
        reply = client.post(
            "/invocations",
            json={"inputs": "Hello", "stream": stream},
            environ_overrides={"gunicorn.socket": pair[0]},
            buffered=True,
        )
    assert engine.aborted == [engine.requests[0].id]
    assert engine.abort_reasons == [AbortReason.CLIENT_LEFT]
    assert b"generated_text" not in reply.data
    assert "finish=client_gone" in caplog.text
