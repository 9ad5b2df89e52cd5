"""Errors that a worker answers itself, without a server. `test_gunicorn` sends malformed HTTP to a real one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import gevent
import pytest
from gevent import socket as gevent_socket
from gunicorn.config import Config
from gunicorn.http.errors import InvalidRequestLine, InvalidResponseHeader

from lmi_server.http.connection import ClientConnection, ConnectionLimits
from lmi_server.http.gevent_worker import Worker
from tests.support.logs import Logs


@pytest.fixture
def worker() -> Worker:
    worker = Worker.__new__(Worker)
    worker.cfg, worker.log = Config(), logging.getLogger("gunicorn")
    return worker


@pytest.fixture
def pair() -> Iterator[tuple[ClientConnection, gevent_socket.socket]]:
    accepted, client = gevent_socket.socketpair()
    with ClientConnection(accepted, ConnectionLimits()) as connection, client:
        yield connection, client


def answer(
    worker: Worker, pair: tuple[ClientConnection, gevent_socket.socket], error: BaseException
) -> bytes:
    connection, client = pair
    worker.handle_error(None, connection, None, error)
    connection.close()
    data: bytes = client.recv(10_000)
    return data


def test_what_may_be_a_prompt_is_not_logged(
    worker: Worker, pair: tuple[ClientConnection, gevent_socket.socket], logs: Logs
) -> None:
    """The rest of a body that is longer than its Content-Length looks like the next request line."""
    data = answer(worker, pair, InvalidRequestLine("my secret"))
    assert data.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert "my secret" in json.loads(data.partition(b"\r\n\r\n")[2])["error"]
    assert logs.messages == ["malformed HTTP: InvalidRequestLine"]


@pytest.mark.parametrize("error", [ValueError("details"), InvalidResponseHeader("details")])
def test_a_fault_of_the_server_is_logged_and_not_shown(
    error: Exception, worker: Worker, pair: tuple[ClientConnection, gevent_socket.socket], logs: Logs
) -> None:
    data = answer(worker, pair, error)
    assert data.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"details" not in data.replace(b"log has the details", b"")
    assert type(error).__name__ in logs.text
    assert "details" in logs.text


def test_a_connection_that_ends_with_the_worker_gets_no_error(
    worker: Worker, pair: tuple[ClientConnection, gevent_socket.socket], logs: Logs
) -> None:
    assert answer(worker, pair, gevent.GreenletExit()) == b""
    assert logs.messages == []
