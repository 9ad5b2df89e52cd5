"""Detection of client disconnects by polling, without gevent."""

from __future__ import annotations

from lmi_server.http.client_gone import ClientWatch
from tests.lmi_server.conftest import Connection


def test_a_client_that_sends_more_data_is_connected_until_it_closes(connection: Connection) -> None:
    server, client = connection
    assert not ClientWatch(server).disconnected
    client.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
    assert not ClientWatch(server).disconnected
    client.close()
    assert ClientWatch(server).disconnected
    assert server.recv(3) == b"GET"


def test_without_a_connection_no_disconnect_is_reported() -> None:
    assert not ClientWatch.from_environ({}).disconnected
