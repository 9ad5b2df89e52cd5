"""The application with a scripted engine, for a real gunicorn worker. Tests control it through the `/test` routes.

Prompts: `answer` is answered immediately; `gated` gets one token, then waits for `/test/release`; `hang` gets no token;
`endless` gets tokens forever; `refused` gets the error of a full queue.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flask import Flask

from engines.core import Request, RequestOutput
from engines.errors import Overloaded
from lmi_server.app import create_app
from lmi_server.config import ServerConfig
from lmi_server.http.connection import ConnectionLimits
from lmi_server.http.gevent_worker import Worker
from lmi_server.text.tokenizer import TextModel
from tests.lmi_server.fakes import FakeEngine, tokens, web_config

ANSWER = "The capital of France is Paris."
LONG_LIMITS = ConnectionLimits(head_seconds=100.0, stall_seconds=100.0)
SHORT_LIMITS = ConnectionLimits(head_seconds=0.5, stall_seconds=0.5)


class AdjustableWorker(Worker):
    """The real worker, with time limits that a test can change and a small send buffer."""

    limits = LONG_LIMITS

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        super().handle(listener, client, addr)


def make_app(folder: str) -> Flask:
    text = TextModel.from_folder(Path(folder))
    gate = threading.Event()

    def script(request: Request) -> Iterator[RequestOutput | threading.Event]:
        prompt = text.decode(request.prompt_token_ids)
        if "refused" in prompt:
            yield from tokens(request, [], Overloaded("the queue is full (job_queue_size)"))
        if "hang" in prompt:
            yield threading.Event()
        while "endless" in prompt:
            yield tokens(request, text.encode(ANSWER), None)[0]
        outputs = tokens(request, text.encode(ANSWER))
        yield outputs[0]
        if "gated" in prompt:
            yield gate
        yield from outputs[1:]

    engine = FakeEngine(script)
    app = create_app(
        web_config(Path(folder), ServerConfig(max_request_size=100_000, predict_timeout=600)), engine, text
    )

    @app.post("/test/release")
    def release() -> str:
        gate.set()
        return ""

    @app.post("/test/hurry")
    def hurry() -> str:
        """Set the time limits of new connections to half a second."""
        AdjustableWorker.limits = SHORT_LIMITS
        return ""

    @app.post("/test/reset")
    def reset() -> str:
        AdjustableWorker.limits = LONG_LIMITS
        for event in (gate, engine.submit_seen, engine.abort_seen):
            event.clear()
        return ""

    @app.get("/test/wait_submitted")
    def wait_submitted() -> dict[str, bool]:
        return {"seen": engine.submit_seen.wait(60)}

    @app.post("/test/wait_abort")
    def wait_abort() -> dict[str, bool]:
        while True:
            engine.abort_seen.clear()
            if {request.id for request in engine.requests[-engine.submissions[-1] :]} <= set(engine.aborted):
                return {"seen": True}
            if not engine.abort_seen.wait(60):
                return {"seen": False}

    return app
