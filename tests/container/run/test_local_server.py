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

from container.errors import BadVariable
from container.run import local_server, peer
from container.run.local_server import LocalServer, NotHealthy, free_port, second_ports
from tests.support.loopback import LoopbackServer, QuietHandler

HEALTHY = (200, {"status": "Healthy"})
STUCK = (503, {"status": "Unhealthy", "state": "ready", "reason": "the engine has made no progress for 9 s"})
LOADING = (503, {"status": "Unhealthy", "state": "starting", "reason": "the model is loading"})


class _Web(LoopbackServer):
    reply: tuple[int, dict[str, Any]] = HEALTHY
    num_requests = 0


class _Handler(QuietHandler):
    server: _Web

    def do_GET(self) -> None:
        self.server.num_requests += 1
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
    """Its response may be endless, so it gets no request."""
    server = server_of(web)
    server.wait_healthy(10.0, threading.Event())
    web.num_requests = 0
    monkeypatch.setattr(peer, "user_of", lambda address, port, state: os.getuid() + 1)
    with pytest.raises(NotHealthy, match="last response: another user's process has the port"):
        server.wait_healthy(0.3, threading.Event())
    assert web.num_requests == 0


def test_a_machine_without_a_free_port_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"no free port of 127\.0\.0\.1 found in {port} to {port}"):
            free_port(range(port, port + 1))


def test_the_platform_can_limit_the_ports() -> None:
    default = second_ports({})
    assert second_ports({"SAGEMAKER_SAFE_PORT_RANGE": ""}) == default
    assert second_ports({"SAGEMAKER_SAFE_PORT_RANGE": "21000-21999"}) == range(21_000, 22_000)
    assert second_ports({"SAGEMAKER_SAFE_PORT_RANGE": "1-65535"}) == range(1, 65_536)


@pytest.mark.parametrize(
    "text", ["21000", "21000-", "21999-21000", "0-99", "1-65536", "a-b", "1-2-3", "\u0661-9"]
)
def test_an_invalid_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(BadVariable, match=r"is not a range of ports; allowed: FIRST-LAST within 1 to 65535"):
        second_ports({"SAGEMAKER_SAFE_PORT_RANGE": text})
