"""A user's formatters, which run in a process of their own: they rewrite the bodies and answers of text generation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engines.base import HandlerEngine
from engines.errors import DeadlineExceeded, InvalidRequest, RequestFailed, error_from_kind
from engines.invocations import Invocation, InvocationOutput
from lmi_server.http.json_object import parse_object
from lmi_server.http.json_reply import dump


class Formatter:
    """Asks the formatters' process."""

    def __init__(self, engine: HandlerEngine, roles: Collection[str], timeout: float) -> None:
        """roles: of `input_formatter` and `output_formatter`, those that the user supplies; timeout: seconds."""
        self._engine = engine
        self._roles = roles
        self._timeout = timeout

    def body(self, data: bytearray, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return a request's body as the user's formatter rewrites it. Raises `EngineError`."""
        return parse_object(self._call("input", bytes(data), headers))

    @property
    def reads_bodies(self) -> bool:
        return "input_formatter" in self._roles

    @property
    def writes_answers(self) -> bool:
        return "output_formatter" in self._roles

    def answer(self, content: dict[str, Any]) -> list[Any]:
        """Return the rewritten records. Raises `EngineError`."""
        results: list[Any] = msgspec.json.decode(self._call("output", dump(content).encode(), {}))
        return results

    def _call(self, stage: str, data: bytes, headers: Mapping[str, str]) -> bytearray:
        name = uuid.uuid4().hex
        properties = {**headers, "stage": stage, "requestId": name}
        stream = self._engine.invoke(Invocation(name, time.monotonic(), properties, (("data", data),)))
        deadline = time.monotonic() + self._timeout
        body = bytearray()
        status = 0
        output: InvocationOutput | None = None
        while output is None or not output.finished:
            output = stream.next(deadline - time.monotonic())
            if output is None:
                raise DeadlineExceeded(f"the {stage} formatter took longer than {self._timeout:g} s")
            body += output.body
            status = output.head.status if output.head is not None else status
        if output.error_kind:
            raise error_from_kind(output.error_kind, output.error_message)
        if status >= 300:
            error = msgspec.json.decode(body).get("error") if body else "out of memory"
            raise (InvalidRequest if stage == "input" else RequestFailed)(
                f"the {stage} formatter failed: {error}"
            )
        return body
