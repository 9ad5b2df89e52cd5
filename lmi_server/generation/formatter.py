"""Call a user's formatters, which rewrite the requests and responses of text generation in a separate process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from engines.base import HandlerEngine, InvocationStream
from engines.core import AbortReason
from engines.errors import InvalidRequest, RequestFailed, error_from_kind
from engines.health import Health
from engines.invocations import Invocation
from lmi_server.generation.time_limit import TimeLimit
from lmi_server.http.client_gone import ClientWatch
from lmi_server.http.json_object import parse_object
from lmi_server.http.json_reply import dump


class Rewritten(msgspec.Struct, frozen=True):
    """A response as rewritten by the user's formatter."""

    results: list[Any]
    """One for each record, or a text for all tokens of an answer."""
    reads_tokens: bool
    """Whether the formatter reads tokens; if not, it reads records."""


@contextmanager
def errors_of_returned_body() -> Iterator[None]:
    """Name the input formatter in errors of a body that it returned: the client may have sent another one."""
    try:
        yield
    except InvalidRequest as error:
        error.args = (f"the body that the input formatter returned: {error}",)
        raise


class Formatter:
    """Calls the formatters' process. Calls raise `EngineError`, or `ClientDisconnected` if the client disconnects."""

    def __init__(self, engine: HandlerEngine, roles: Collection[str]) -> None:
        """roles: which of `input_formatter` and `output_formatter` the user supplies."""
        self._engine = engine
        self._roles = roles

    def health(self) -> Health:
        """Return the health of the formatters' process. The reason names the formatters."""
        health = self._engine.health()
        reason = ": ".join(filter(None, ("the formatters are not ready", health.reason)))
        return health if health.ready else replace(health, reason=reason)

    def rewrite_request(
        self, data: bytearray, headers: Mapping[str, str], client: ClientWatch, limit: TimeLimit
    ) -> dict[str, Any]:
        """Return a request's body as rewritten by the user's formatter. limit: the request's."""
        body = self._call("input", bytes(data), headers, client, limit)
        with errors_of_returned_body():
            return parse_object(body)

    @property
    def reads_bodies(self) -> bool:
        return "input_formatter" in self._roles

    @property
    def writes_answers(self) -> bool:
        return "output_formatter" in self._roles

    def rewrite_response(self, content: dict[str, Any], client: ClientWatch, limit: TimeLimit) -> Rewritten:
        """Return the response's records or tokens as rewritten by the user's formatter. limit: the request's."""
        body = self._call("output", dump(content).encode(), {}, client, limit)
        return msgspec.json.decode(body, type=Rewritten)

    def _call(
        self, stage: str, data: bytes, headers: Mapping[str, str], client: ClientWatch, limit: TimeLimit
    ) -> bytearray:
        name = uuid.uuid4().hex
        properties = {**headers, "stage": stage, "requestId": name}
        stream = self._engine.invoke(Invocation(name, time.monotonic(), properties, (("data", data),)))
        try:
            return self._read(stage, stream, client, limit)
        finally:
            # Has no effect after the last output.
            self._engine.abort(name, AbortReason.FAILED)

    def _read(self, stage: str, stream: InvocationStream, client: ClientWatch, limit: TimeLimit) -> bytearray:
        late = limit.exceeded(f"the {stage} formatter had not returned")
        body = bytearray()
        status = 0
        finished = False
        while not finished:
            output = client.next_output(stream.next, limit.deadline, lambda: late)
            body += output.body
            status = output.head.status if output.head is not None else status
            finished = output.finished
        if output.error_kind:
            raise error_from_kind(output.error_kind, output.error_message)
        if status >= 300:
            error = msgspec.json.decode(body).get("error") if body else "out of memory"
            raise (InvalidRequest if stage == "input" else RequestFailed)(
                f"the {stage} formatter failed: {error}"
            )
        return body
