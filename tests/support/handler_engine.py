"""Processes of a user's handler, driven through the dispatcher's socket and status board."""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from engines.client import ClientStream
from engines.config import (
    BatchConfig,
    HandlerEngineConfig,
    HandlerSettings,
    ModelSettings,
    ParallelConfig,
)
from engines.invocations import Invocation, InvocationOutput
from tests.support.engine_process import EngineProcess

LMI_FILES = Path(__file__).parents[1] / "engines" / "python" / "handlers" / "lmi_files"
_WAIT_SECONDS = 200.0


def handler_config(
    name: str,
    *,
    entry: str = "model.py",
    batch_size: int = 1,
    max_batch_delay: float = 0.0,
    max_waiting: int = 100,
    batch_timeout: float = 60.0,
    min_workers: int = 1,
    max_workers: int = 1,
    max_idle_seconds: float = 60.0,
    **properties: str,
) -> HandlerEngineConfig:
    """A configuration for a handler in `lmi_files`. Times are in seconds. properties: options of the handler."""
    folder = LMI_FILES / name
    return HandlerEngineConfig(
        model=ModelSettings(str(folder), name, "", 0),
        parallel=ParallelConfig(1, "cpu", 1),
        batching=BatchConfig(batch_size, max_batch_delay, max_waiting, batch_timeout),
        handler=HandlerSettings(
            file=str(folder / entry),
            function="handle",
            properties=properties,
            python=sys.executable,
            min_workers=min_workers,
            max_workers=max_workers,
            max_idle_seconds=max_idle_seconds,
            loading_timeout=_WAIT_SECONDS,
        ),
    )


class HandlerEngine(EngineProcess):
    """A dispatcher and its workers. Call `wait_ready` before use, and `destroy` in any case."""

    module = "engines.python.handlers.dispatcher"

    def invoke(self, body: bytes | str | dict[str, Any], **headers: str) -> Reply:
        """Send a request. Names of headers have `_` for `-`."""
        data = json.dumps(body) if isinstance(body, dict) else body
        data = data.encode() if isinstance(data, str) else data
        name = uuid.uuid4().hex
        properties = {key.replace("_", "-"): value for key, value in headers.items()} | {"requestId": name}
        call = Invocation(name, time.monotonic(), properties, (("data", data),))
        return Reply(name, self.client.invoke(call))


class Reply:
    """The response to one request, read on demand."""

    def __init__(self, name: str, stream: ClientStream[InvocationOutput]) -> None:
        self.name = name
        self._stream = stream
        self._pieces: list[InvocationOutput] = []

    def next(self) -> InvocationOutput:
        """Return the next piece. Raises TimeoutError if there is none in time."""
        output = self._stream.next(_WAIT_SECONDS)
        if output is None:
            raise TimeoutError("no output from the engine")
        self._pieces.append(output)
        return output

    @property
    def pieces(self) -> list[InvocationOutput]:
        """All pieces of the response."""
        while not (self._pieces and self._pieces[-1].finished):
            self.next()
        return self._pieces

    @property
    def error(self) -> str:
        return self.pieces[-1].error_kind

    @property
    def status(self) -> int:
        head = self.pieces[0].head
        return head.status if head else 0

    @property
    def headers(self) -> dict[str, str]:
        head = self.pieces[0].head
        return dict(head.headers) if head else {}

    @property
    def body(self) -> bytes:
        return b"".join(piece.body for piece in self.pieces)

    def json(self) -> Any:
        return json.loads(self.body)
