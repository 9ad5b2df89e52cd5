"""Requests that arrive before the web server runs are answered with 503 and the reason."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from container.run import early_answers
from container.run.early_answers import EarlyAnswers
from container.run.serve import listen

SECONDS = 60.0
"""Time limit of each wait. Machines that run tests are busy."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as listener:
        yield listener


@pytest.fixture
def answers(listener: socket.socket) -> Iterator[EarlyAnswers]:
    with EarlyAnswers(listener, quiet_seconds=0.0) as answers:
        answers.reason = "the model is being downloaded"
        yield answers


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), SECONDS)


def ask(
    listener: socket.socket, path: str, method: str = "GET", body: bytes | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(*listener.getsockname(), timeout=SECONDS)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response, response.read()


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(partial(connection.recv, 65536), b""))


@pytest.mark.parametrize("path", ["/ping", "/health", "/ping?verbose=1"])
def test_health_checks_get_the_reason(path: str, listener: socket.socket, answers: EarlyAnswers) -> None:
    response, body = ask(listener, path)
    assert response.status == 503
    assert json.loads(body) == {
        "status": "Unhealthy",
        "state": "starting",
        "reason": "the model is being downloaded",
    }
    assert int(response.headers["Retry-After"]) > 0
    assert response.headers["Connection"] == "close"


@pytest.mark.parametrize("path", ["/invocations", "/admin/scheduler", "/nowhere"])
def test_other_paths_get_the_error_of_a_server_that_loads(
    path: str, listener: socket.socket, answers: EarlyAnswers
) -> None:
    response, body = ask(listener, path, "POST", b"{}")
    assert response.status == 503
    assert json.loads(body) == {"error": "the model is being downloaded", "code": 503}
    assert int(response.headers["Retry-After"]) > 0


def test_paths_of_openai_get_its_error_form(listener: socket.socket, answers: EarlyAnswers) -> None:
    response, body = ask(listener, "/v1/chat/completions", "POST", b"{}")
    assert response.status == 503
    error = json.loads(body)["error"]
    assert (error["code"], error["message"]) == ("unavailable", "the model is being downloaded")


def test_head_gets_no_body(listener: socket.socket, answers: EarlyAnswers) -> None:
    with connect(listener) as connection:
        connection.sendall(b"HEAD /ping HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert body == b""


@pytest.mark.parametrize("line", [b"\r\n", b"\x16\x03\x01\n", b"GET\n", b"x" * 20_000])
def test_malformed_requests_are_answered(line: bytes, listener: socket.socket, answers: EarlyAnswers) -> None:
    with connect(listener) as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection).startswith(b"HTTP/1.1 503 ")


def test_a_large_body_does_not_destroy_the_answer(listener: socket.socket, answers: EarlyAnswers) -> None:
    response, _ = ask(listener, "/invocations", "POST", bytes(32 << 20))
    assert response.status == 503


def test_silent_clients_do_not_delay_others(listener: socket.socket, answers: EarlyAnswers) -> None:
    with connect(listener), connect(listener):
        assert ask(listener, "/ping")[0].status == 503


def test_a_silent_client_is_disconnected(
    listener: socket.socket, answers: EarlyAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_answers, "_CLIENT_SECONDS", 0.05)
    with connect(listener) as connection:
        assert read_all(connection) == b""


def test_when_all_connections_are_used_clients_wait_for_one(
    listener: socket.socket, answers: EarlyAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_answers, "_MAX_CONNECTIONS", 1)
    first = connect(listener)
    with connect(listener) as second:
        second.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
        second.settimeout(0.3)
        with pytest.raises(TimeoutError):
            second.recv(1)
        first.close()
        second.settimeout(SECONDS)
        assert read_all(second).startswith(b"HTTP/1.1 503 ")


def test_an_accepted_connection_is_answered_after_the_end(listener: socket.socket) -> None:
    with EarlyAnswers(listener, quiet_seconds=0.0):
        early = connect(listener)
        early.sendall(b"GET /pi")
        ask(listener, "/ping")  # connections are accepted in order
    with early:
        early.sendall(b"ng HTTP/1.1\r\nHost: a\r\n\r\n")
        assert read_all(early).startswith(b"HTTP/1.1 503 ")


def test_a_later_connection_is_left_to_the_web_server(listener: socket.socket) -> None:
    with EarlyAnswers(listener, quiet_seconds=0.0):
        pass
    with connect(listener):
        listener.settimeout(SECONDS)
        listener.accept()[0].close()


def test_a_quick_start_leaves_all_connections_to_the_web_server(listener: socket.socket) -> None:
    with EarlyAnswers(listener, quiet_seconds=600.0), connect(listener):
        pass
    listener.settimeout(SECONDS)
    listener.accept()[0].close()
