"""When a server counts as healthy or as hanging. Its process is a fake, its web server runs in this process."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from container.run import local_server, peer
from container.run.local_server import LocalServer, NotHealthy, free_port
from tests.support.loopback import LoopbackServer, QuietHandler

HEALTHY = (200, {"status": "Healthy"})
STUCK = (503, {"status": "Unhealthy", "state": "ready", "reason": "the engine has made no progress for 9 s"})
LOADING = (503, {"status": "Unhealthy", "state": "starting", "reason": "the model is loading"})


class _Web(LoopbackServer):
    reply: tuple[int, dict[str, Any]] = HEALTHY


class _Handler(QuietHandler):
    server: _Web

    def do_GET(self) -> None:
        status, body = self.server.reply
        self.respond(status, json.dumps(body).encode(), {})


@pytest.fixture
def web() -> Iterator[_Web]:
    with _Web(_Handler) as server:
        yield server


def server_of(web: _Web) -> LocalServer:
    running: Any = SimpleNamespace(name="the server", death=lambda: None, last_lines=list)
    return LocalServer(running, web.server_port)


def check(server: LocalServer, times: int) -> str | None:
    for _ in range(times):
        server.check()
    return server.death()


def test_a_server_without_progress_counts_as_dead_after_three_checks_in_a_row(web: _Web) -> None:
    server = server_of(web)
    assert check(server, 3) is None
    web.reply = STUCK
    assert check(server, 2) is None
    web.reply = HEALTHY
    assert check(server, 1) is None
    web.reply = STUCK
    assert check(server, 2) is None
    assert check(server, 1) == "the server hangs: the engine has made no progress for 9 s"


def test_a_server_that_restarts_its_engine_does_not_hang(web: _Web) -> None:
    web.reply = LOADING
    assert check(server_of(web), 9) is None


def test_a_server_that_does_not_respond_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens, but accepts no connection."""
    monkeypatch.setattr(local_server, "_CHECK_SECONDS", 0.05)
    silent = _Web(_Handler)
    assert check(server_of(silent), 3) == "the server hangs: no response to /ping (TimeoutError)"
    silent.server_close()


def test_another_users_process_on_the_port_is_not_the_server(
    web: _Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of(web)
    server.wait_healthy(10.0, threading.Event())
    monkeypatch.setattr(peer, "user_of", lambda address, port, state: os.getuid() + 1)
    with pytest.raises(NotHealthy, match="last response: 200 from another user's process"):
        server.wait_healthy(0.3, threading.Event())


def test_a_machine_without_a_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(local_server, "_PORTS", range(port, port + 1))
        with pytest.raises(OSError, match=r"no free port of 127\.0\.0\.1"):
            free_port()
