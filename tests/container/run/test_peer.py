"""The users of sockets."""

from __future__ import annotations

import os
import socket

import pytest

from container.run import peer


@pytest.mark.parametrize(
    ("family", "host", "prefix"),
    [
        (socket.AF_INET, "127.0.0.1", ""),
        (socket.AF_INET6, "::1", ""),
        pytest.param(socket.AF_INET, "127.0.0.1", "::ffff:", id="dual-stack client"),
    ],
)
def test_the_users_of_a_connection_and_of_its_listener_are_known(family: int, host: str, prefix: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"{host} is not available")
        port = listener.getsockname()[1]
        assert peer.user_of(host, port, peer.LISTENING) is None
        listener.listen()
        client = socket.socket(socket.AF_INET6 if prefix else family)
        client.connect((f"{prefix}{host}", port))
        connection, address = listener.accept()
        with connection:
            assert peer.user_of(host, port, peer.LISTENING) == os.getuid()
            assert peer.user_of(*address[:2], peer.ESTABLISHED) == os.getuid()
            client.close()  # its user is no longer known
            assert peer.user_of(*address[:2], peer.ESTABLISHED) is None
