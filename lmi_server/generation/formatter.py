"""Call a user's formatters, which rewrite the requests and responses of text generation in a separate process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from engines.base import HandlerEngine, InvocationStream
from engines.core import AbortReason
from engines.errors import DeadlineExceeded, InvalidRequest, RequestFailed, error_from_kind
from engines.invocations import Invocation
from lmi_server.errors import InvalidField
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
def errors_of_returned_body(is_header: Callable[[str], bool] = lambda name: False) -> Iterator[None]:
    """Name the input formatter in errors of a body that it returned: the client may have sent another one.

    is_header: whether the client's request has a header of this name. Errors of headers are the client's.
    """
    try:
        yield
    except InvalidRequest as error:
        if not (isinstance(error, InvalidField) and is_header(error.field)):
            error.args = (f"the body that the input formatter returned: {error}",)
        raise


class Formatter:
    """Calls the formatters' process. Calls raise `EngineError`, or `ClientDisconnected` if the client disconnects."""

    def __init__(self, engine: HandlerEngine, roles: Collection[str], timeout: float) -> None:
        """roles: which of `input_formatter` and `output_formatter` the user supplies; timeout: seconds."""
        self._engine = engine
        self._roles = roles
        self._timeout = timeout

    def rewrite_request(
        self, data: bytearray, headers: Mapping[str, str], client: ClientWatch
    ) -> dict[str, Any]:
        """Return a request's body as rewritten by the user's formatter."""
        body = self._call("input", bytes(data), headers, client)
        with errors_of_returned_body():
            return parse_object(body)

    @property
    def reads_bodies(self) -> bool:
        return "input_formatter" in self._roles

    @property
    def writes_answers(self) -> bool:
        return "output_formatter" in self._roles

    def rewrite_response(self, content: dict[str, Any], client: ClientWatch) -> Rewritten:
        """Return the response's records or tokens as rewritten by the user's formatter."""
        return msgspec.json.decode(self._call("output", dump(content).encode(), {}, client), type=Rewritten)

    def _call(self, stage: str, data: bytes, headers: Mapping[str, str], client: ClientWatch) -> bytearray:
        name = uuid.uuid4().hex
        properties = {**headers, "stage": stage, "requestId": name}
        stream = self._engine.invoke(Invocation(name, time.monotonic(), properties, (("data", data),)))
        try:
            return self._read(stage, stream, client)
        finally:
            # Has no effect after the last output.
            self._engine.abort(name, AbortReason.FAILED)

    def _read(self, stage: str, stream: InvocationStream, client: ClientWatch) -> bytearray:
        deadline = time.monotonic() + self._timeout
        late = DeadlineExceeded(f"the {stage} formatter took longer than {self._timeout:g} s")
        body = bytearray()
        status = 0
        finished = False
        while not finished:
            output = client.next_output(stream.next, deadline, lambda: late)
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
