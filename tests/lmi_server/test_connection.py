"""Time and size limits of a client connection, without a server."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent import socket as gevent_socket

from lmi_server.http.connection import ClientConnection, ConnectionLimits, StallBudget

QUICK = ConnectionLimits(
    idle_seconds=0.02, head_seconds=0.02, body_seconds=0.02, stall_seconds=0.02, bytes_per_second=1_000_000
)
LONG_LIMITS = ConnectionLimits()

Pair = Callable[[ConnectionLimits], tuple[ClientConnection, gevent_socket.socket]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    opened: list[gevent_socket.socket] = []

    def make(limits: ConnectionLimits) -> tuple[ClientConnection, gevent_socket.socket]:
        accepted, client = gevent_socket.socketpair()
        client.settimeout(60)
        opened.extend([ClientConnection(accepted, limits), client])
        return opened[-2], client

    yield make
    for connection in opened:
        connection.close()


def test_an_idle_connection_is_closed_without_a_response(pair: Pair) -> None:
    connection, client = pair(QUICK)
    assert connection.recv(100) == b""
    connection.close()
    assert client.recv(100) == b""


def test_the_time_limit_for_headers_starts_at_the_first_byte(pair: Pair) -> None:
    connection, client = pair(ConnectionLimits(head_seconds=0.02))
    client.sendall(b"GET / HTTP/1.1\r\nHost:")
    assert connection.recv(100) == b"GET / HTTP/1.1\r\nHost:"
    assert connection.recv(100) == b""
    answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == 408


def test_headers_are_delivered_in_whole_lines(pair: Pair) -> None:
    """gunicorn parses each line once, however slowly its bytes arrive."""
    connection, client = pair(LONG_LIMITS)
    reader = gevent.spawn(connection.recv, 100)
    for byte in b"GET / HTTP/1.1\r":
        client.sendall(bytes([byte]))
        gevent.sleep(0.001)
    assert not reader.ready()
    client.sendall(b"\n")
    assert reader.get() == b"GET / HTTP/1.1\r\n"


def test_the_limit_on_header_bytes_does_not_count_the_body(pair: Pair) -> None:
    connection, client = pair(ConnectionLimits(head_bytes=10))
    for _ in range(2):
        client.sendall(b"12345678\n")
        assert connection.recv(100) == b"12345678\n"
        client.sendall(b"a\n" + b"the body" * 10)
        assert connection.recv(100) == b"a\n" + b"the body" * 10
        connection.begin_request()
        connection.await_request()
    client.sendall(b"12345678901")
    assert connection.recv(100) == b""
    assert client.recv(1000).startswith(b"HTTP/1.1 431 ")
    connection.await_request()
    client.sendall(b"1234567890\n")
    assert connection.recv(100) == b"1234567890\n"
    client.sendall(b"a\n")
    assert connection.recv(100) == b""


def test_a_stalled_body_times_out(pair: Pair) -> None:
    connection, client = pair(ConnectionLimits(stall_seconds=0.02))
    connection.begin_request()
    client.sendall(b"{")
    assert connection.recv(100) == b"{"
    with pytest.raises(TimeoutError):
        connection.recv(100)


def test_a_body_times_out_even_if_it_makes_progress(pair: Pair) -> None:
    connection, client = pair(ConnectionLimits(body_seconds=0.02))
    connection.begin_request()

    def trickle() -> None:
        while True:
            client.sendall(b"x" * 10_000)
            gevent.sleep(0.005)

    sender = gevent.spawn(trickle)
    with pytest.raises(TimeoutError):
        all(iter(lambda: connection.recv(100_000), b""))
    sender.kill()


def test_transfers_refill_the_stall_budget_up_to_its_limit() -> None:
    budget = StallBudget(ConnectionLimits(stall_seconds=30, bytes_per_second=1000))
    for _ in range(100):
        budget.record_transfer(num_bytes=20_000, waited=20)
    assert budget.seconds_left == 30
    budget.record_transfer(num_bytes=5_000, waited=10)
    assert budget.seconds_left == 25
    for _ in range(2):
        budget.record_transfer(num_bytes=7_000, waited=20)
    assert budget.seconds_left < 0


def test_other_greenlets_run_while_a_body_arrives_fast(pair: Pair) -> None:
    connection, client = pair(LONG_LIMITS)
    connection.begin_request()
    client.sendall(b"x" * 10)
    turns: list[int] = []  # one turn of another greenlet per byte read
    for number in range(10):
        gevent.spawn(turns.append, number)
        assert connection.recv(1) == b"x"
        assert len(turns) == number + 1


def fill(connection: ClientConnection) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.sendall(b"x" * 10_000_000)


def test_a_client_that_does_not_read_is_disconnected(pair: Pair) -> None:
    connection, _ = pair(QUICK)
    connection.begin_request()
    with pytest.raises(ConnectionResetError, match="does not read"):
        fill(connection)


def test_a_client_that_reads_slowly_receives_everything(pair: Pair) -> None:
    connection, client = pair(ConnectionLimits(stall_seconds=60.0))
    connection.begin_request()
    sender = gevent.spawn(fill, connection)
    received = 0
    while received < 10_000_000:
        received += len(client.recv(200_000))
        gevent.sleep(0)
    sender.get()


def test_a_client_that_reads_a_response_too_slowly_is_disconnected(pair: Pair) -> None:
    """It may not hold a large response for hours, although it never stalls for long."""
    connection, client = pair(ConnectionLimits(send_seconds=0.02, send_bytes_per_second=10**12))
    connection.begin_request()

    def trickle() -> None:
        while client.recv(10_000):
            gevent.sleep(0.001)

    reader = gevent.spawn(trickle)
    with pytest.raises(ConnectionResetError, match="does not read"):
        fill(connection)
    reader.kill()


def test_a_larger_response_may_take_longer(pair: Pair) -> None:
    connection, client = pair(ConnectionLimits(send_seconds=0.0, send_bytes_per_second=200_000))
    connection.begin_request()
    sender = gevent.spawn(fill, connection)
    received = 0
    while received < 10_000_000:
        gevent.sleep(0.001)
        received += len(client.recv(1_000_000))
    sender.get()


def test_a_peek_consumes_nothing_and_has_no_time_limit(pair: Pair) -> None:
    connection, client = pair(QUICK)
    connection.begin_request()
    peek = gevent.spawn(connection.recv, 1, socket.MSG_PEEK)
    gevent.sleep(0.06)
    assert not peek.ready()
    client.sendall(b"x")
    assert peek.get() == b"x"
    assert gevent_socket.socket.recv(connection, 10) == b"x"


def test_an_evicted_connection_is_closed(pair: Pair) -> None:
    connection, client = pair(LONG_LIMITS)
    reader = gevent.spawn(connection.recv, 100)
    gevent.sleep(0)
    assert connection.awaits_client
    connection.evict()
    assert reader.get() == b""
    assert not connection.awaits_client
    assert client.recv(100) == b""
