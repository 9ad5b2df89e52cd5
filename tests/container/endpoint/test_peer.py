"""Only the user who runs the emulator may call it."""

from __future__ import annotations

import os

import pytest
from botocore.exceptions import ClientError

from container.run import peer
from tests.container.endpoint.fake_containers import FakeLab


def test_other_users_are_refused(platform: FakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.sagemaker.list_models()["Models"] == []
    for user in (os.getuid() + 1, None):
        monkeypatch.setattr(peer, "user_of", lambda address, port, state, user=user: user)
        with pytest.raises(ClientError, match="only processes of the user who runs lmi endpoint"):
            platform.sagemaker.list_models()
    monkeypatch.setattr(peer, "user_of", lambda address, port, state: 0)
    platform.sagemaker.list_models()
