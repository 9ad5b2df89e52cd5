"""Only the user who runs the emulator may call it."""

from __future__ import annotations

import os
import socket

import pytest
from botocore.exceptions import ClientError

from container.endpoint import peer
from tests.container.endpoint.fake_containers import FakeLab


@pytest.mark.parametrize(
    ("family", "host", "prefix"),
    [
        (socket.AF_INET, "127.0.0.1", ""),
        (socket.AF_INET6, "::1", ""),
        pytest.param(socket.AF_INET, "127.0.0.1", "::ffff:", id="dual-stack client"),
    ],
)
def test_the_user_of_an_open_connection_is_known(family: int, host: str, prefix: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"{host} is not available")
        listener.listen()
        client = socket.socket(socket.AF_INET6 if prefix else family)
        client.connect((f"{prefix}{host}", listener.getsockname()[1]))
        connection, address = listener.accept()
        with connection:
            assert peer.user_of(*address[:2]) == os.getuid()
            client.close()  # its user is no longer known
            assert peer.user_of(*address[:2]) is None


def test_other_users_are_refused(platform: FakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.sagemaker.list_models()["Models"] == []
    for user in (os.getuid() + 1, None):
        monkeypatch.setattr(peer, "user_of", lambda address, port, user=user: user)
        with pytest.raises(ClientError, match="only processes of the user who runs lmi endpoint"):
            platform.sagemaker.list_models()
    monkeypatch.setattr(peer, "user_of", lambda address, port: 0)
    platform.sagemaker.list_models()
