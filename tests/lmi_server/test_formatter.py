"""Formatter calls are aborted when they time out or the client disconnects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.base import HandlerEngine
from engines.core import AbortReason
from engines.errors import DeadlineExceeded
from engines.invocations import Invocation
from lmi_server.app import create_app
from lmi_server.generation.formatter import Formatter
from lmi_server.http.client_gone import ClientWatch
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.conftest import Connection
from tests.lmi_server.fakes import FakeEngine, web_config


class SilentEngine(HandlerEngine):
    """Never answers. Records the ids of all calls and of aborted calls."""

    def __init__(self, on_call: Callable[[], None] = lambda: None) -> None:
        self.calls: list[str] = []
        self.aborted: list[str] = []
        self._on_call = on_call

    def invoke(self, invocation: Invocation) -> Any:
        self.calls.append(invocation.id)
        self._on_call()
        return SimpleNamespace(next=lambda timeout: None)

    def abort(self, request_id: str, reason: AbortReason) -> None:
        self.aborted.append(request_id)


def test_a_call_that_times_out_is_aborted() -> None:
    engine = SilentEngine()
    formatter = Formatter(engine, ("input_formatter",), timeout=0)
    with pytest.raises(DeadlineExceeded, match="the input formatter took longer than 0 s"):
        formatter.rewrite_request(bytearray(b"{}"), {}, ClientWatch(None))
    assert len(engine.calls) == 1
    assert engine.aborted == engine.calls


@pytest.mark.parametrize("role", ["input_formatter", "output_formatter"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_aborted_when_the_client_disconnects(
    role: str, stream: bool, connection: Connection, engine: FakeEngine, text_model: TextModel
) -> None:
    server, peer = connection
    formatter_engine = SilentEngine(on_call=peer.close)
    app = create_app(web_config(Path("/none")), engine, text_model, Formatter(formatter_engine, (role,), 60))
    reply = app.test_client().post(
        "/invocations",
        json={"inputs": "Hello", "stream": stream},
        environ_overrides={"gunicorn.socket": server},
    )
    assert reply.text == ""
    assert len(formatter_engine.calls) == 1
    assert formatter_engine.aborted == formatter_engine.calls
    if role == "input_formatter" or not stream:
        assert reply.status_code == 499
