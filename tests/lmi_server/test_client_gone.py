"""Detection of client disconnects by polling, without gevent."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from lmi_server.http.client_gone import ClientWatch


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    server, client = socket.socketpair()
    with server, client:
        yield server, client


def test_a_waiting_client_is_connected(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not ClientWatch(pair[0]).disconnected


def test_a_client_that_closes_its_connection_is_disconnected(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[1].close()
    assert ClientWatch(pair[0]).disconnected


def test_a_client_that_sends_more_data_is_connected_until_it_closes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, client = pair
    client.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
    assert not ClientWatch(server).disconnected
    client.close()
    assert ClientWatch(server).disconnected
    assert server.recv(3) == b"GET"


def test_without_a_connection_no_disconnect_is_reported() -> None:
    assert not ClientWatch.from_environ({}).disconnected
