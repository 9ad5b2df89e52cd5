"""The router's clients that disconnect before they have a response."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from werkzeug.test import TestResponse

from lmi_server.http.client_gone import ClientWatch
from tests.container.multi_model.clients import client_of
from tests.container.multi_model.fakes import FakeModels
from tests.container.multi_model.test_loading import close_gates
from tests.support.logs import Logs
from tests.support.waiting import wait_until


class LeavingClient:
    """A client of a router with the models a and b. It posts in a thread, from connections that it can close."""

    def __init__(self, lab: FakeModels, pool: ThreadPoolExecutor) -> None:
        self._client = client_of(lab.manager("a", "b"))
        self._pool = pool
        self.sockets: list[socket.socket] = []

    def post(self, name: str, body: bytes = b"x") -> tuple[Future[TestResponse], Callable[[], None]]:
        """Return the coming response, and a function that closes the client's end of the connection."""
        server, peer = socket.socketpair()
        self.sockets += [server, peer]
        send = partial(self._client.post, environ_overrides={"gunicorn.socket": server})
        return self._pool.submit(send, f"/predictions/{name}", data=body), peer.close


@pytest.fixture
def leaving(lab: FakeModels) -> Iterator[LeavingClient]:
    close_gates(lab, "a")
    with ThreadPoolExecutor(2) as pool:
        client = LeavingClient(lab, pool)
        try:
            yield client
        finally:
            lab.gates["a"].set()
            lab.go.set()
    for each in client.sockets:
        each.close()


def num_arrived(lab: FakeModels) -> int:
    """Return the number of requests that the models' servers have received since the last call."""
    count = 0
    while lab.arrived.acquire(blocking=False):
        count += 1
    return count


def test_a_request_that_waits_for_a_load_ends_with_its_client(
    leaving: LeavingClient, lab: FakeModels, logs: Logs
) -> None:
    first, _ = leaving.post("a")
    wait_until(lambda: lab.up() == ["a"])
    second, leave = leaving.post("a")
    leave()
    wait_until(second.done, seconds=30.0)
    assert second.result().status_code == 499
    assert any("status=499" in line and line.endswith("finish=client_gone") for line in logs.messages)
    assert not first.done()
    lab.gates["a"].set()
    assert first.result().status_code == 200
    assert num_arrived(lab) == 1


def test_a_request_that_starts_a_load_is_not_forwarded_without_its_client(
    leaving: LeavingClient, lab: FakeModels
) -> None:
    first, leave = leaving.post("a")
    wait_until(lambda: lab.up() == ["a"])
    leave()
    lab.gates["a"].set()
    assert first.result().status_code == 499
    assert num_arrived(lab) == 0
    assert lab.managers[0].model("a").is_ready
    assert lab.managers[0].model("a").in_flight == 0


@pytest.mark.parametrize(
    ("leaves", "status", "finish"), [(True, 499, "client_gone"), (False, 503, "engine_died")]
)
def test_only_a_client_that_stays_learns_that_the_server_dropped_its_request(
    leaves: bool, status: int, finish: str, leaving: LeavingClient, lab: FakeModels, logs: Logs
) -> None:
    """A client that leaves makes the router close its connection to the model's server, which then looks alike."""
    lab.go.clear()
    response, leave = leaving.post("b", b"drop")
    lab.arrived.acquire()
    if leaves:
        leave()
    lab.go.set()
    assert response.result().status_code == status
    assert any(f"status={status}" in line and line.endswith(f"finish={finish}") for line in logs.messages)


def test_a_forwarded_request_ends_with_its_client(
    leaving: LeavingClient, lab: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the router's worker a greenlet notices that the client has left; here, the test does."""
    callbacks: list[Callable[[], None]] = []
    monkeypatch.setattr(ClientWatch, "start", lambda watch, on_disconnect: callbacks.append(on_disconnect))
    lab.go.clear()
    response, leave = leaving.post("b")
    lab.arrived.acquire()
    leave()
    wait_until(lambda: callbacks, seconds=30.0)
    callbacks[0]()
    wait_until(response.done, seconds=30.0)
    assert response.result().status_code == 499
    assert not lab.go.is_set()
