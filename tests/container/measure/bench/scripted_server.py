"""A small HTTP server for both dialects that answers each request by a script."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.support.loopback import LoopbackServer, QuietHandler

FIRST_ID = 100
"""Token k of a response has the id FIRST_ID + k."""


@dataclass(frozen=True, slots=True)
class Script:
    """The response to one request."""

    status: int = 200
    body: bytes = b""
    """The whole body of a response whose status is not 200."""
    first_seconds: float = 0.0
    """Delay before the first token."""
    gap_seconds: float = 0.0
    """Delay before each further token."""
    extra_tokens: int = 0
    """Tokens sent beyond those requested; below 0, tokens missing."""
    prompt_tokens: int | None = None
    """The number of prompt tokens that the server reports, in both dialects."""
    usage: bool = True
    """Whether token counts are reported."""
    error_after: int | None = None
    """Number of tokens after which an error record ends the stream."""
    break_after: int | None = None
    """Number of tokens after which the connection is reset."""
    end_after: int | None = None
    """Number of tokens after which the stream ends, well-formed but without its final record."""
    token_ids: tuple[int, ...] = ()
    """Ids of the tokens; empty: FIRST_ID and following."""
    raw: bytes | None = None
    """The whole stream, sent instead of records."""
    wait_for: threading.Event | None = None
    """Event to wait for before the first token."""
    read: threading.Semaphore | None = None
    """Semaphore to acquire after each token, released when the client has read the token."""
    chunked: bool = True
    """False: the response ends with the connection, as in HTTP/1.0."""


Planner = Callable[[int, dict[str, Any]], Script]
"""(number of the request in order of arrival, body) -> script."""


@dataclass(slots=True)
class SeenRequest:
    """One request as seen by the server. Filled by the thread that answers the request."""

    path: str
    body: dict[str, Any]
    connection: tuple[str, int]
    """The client's address, which identifies the connection."""
    arrived: float
    """From time.perf_counter, like all times here."""
    headers: dict[str, str]
    token_times: list[float] = field(default_factory=list)
    """Time at which each token was written."""
    ended: float = 0.0


class ScriptedServer:
    """Listens on a free port until the context exits."""

    def __init__(
        self,
        plan: Planner,
        ping: Callable[[], tuple[int, bytes]] = lambda: (200, b"{}"),
        metrics: Callable[[], bytes] = bytes,
    ) -> None:
        self.seen: list[SeenRequest] = []
        self.lock = threading.Lock()
        self.max_in_flight = 0
        self._in_flight = 0
        self.plan = plan
        self.ping = ping
        self.metrics = metrics
        self._server = _Listener(self)
        self.url = self._server.url

    def begin(self, seen: SeenRequest) -> Script:
        with self.lock:
            self.seen.append(seen)
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
            return self.plan(len(self.seen) - 1, seen.body)

    def end(self) -> None:
        with self.lock:
            self._in_flight -= 1

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()


class _Listener(LoopbackServer):
    def __init__(self, owner: ScriptedServer) -> None:
        self.owner = owner
        super().__init__(_Handler)


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        owner = self.server.owner
        answers = {"/ping": owner.ping, "/metrics": lambda: (200, owner.metrics())}
        self._send_whole(*answers.get(self.path, lambda: (404, b""))())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = SeenRequest(self.path, body, self.client_address, time.perf_counter(), dict(self.headers))
        plan = self.server.owner.begin(seen)
        try:
            if plan.status != 200:
                self._send_whole(plan.status, plan.body)
            else:
                self._stream(plan, seen)
        finally:
            self.server.owner.end()

    def _send_whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, plan: Script, seen: SeenRequest) -> None:
        self.send_response(200)
        if plan.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        write = self._write_chunk if plan.chunked else self.wfile.write
        if plan.wait_for is not None and not plan.wait_for.wait(200):
            return
        if plan.raw is not None:
            write(plan.raw)
        else:
            dialect = _Lmi(seen.body) if seen.path.endswith("/invocations") else _OpenAi(seen.body)
            if not self._send_records(dialect, plan, seen, write):
                return
        seen.ended = time.perf_counter()
        if plan.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send_records(
        self, dialect: _Lmi | _OpenAi, plan: Script, seen: SeenRequest, write: Callable[[bytes], Any]
    ) -> bool:
        """Write all records of a response. Return False if the connection was reset instead."""
        count = dialect.num_requested + plan.extra_tokens
        for position in range(count):
            if position == plan.break_after:
                self._reset()
                return False
            if position == plan.error_after:
                write(dialect.error("planned trouble"))
                return True
            if position == plan.end_after:
                return True
            time.sleep(plan.first_seconds if position == 0 else plan.gap_seconds)
            seen.token_times.append(time.perf_counter())
            write(dialect.token(position, count, plan))
            if plan.read is not None and not plan.read.acquire(timeout=200):
                return False
        write(dialect.end(count, plan))
        return True

    def _write_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _reset(self) -> None:
        """Reset the connection instead of closing it properly."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


class _Lmi:
    """One record per token; the final one has the text and the details."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.num_requested: int = body["parameters"]["max_new_tokens"]

    def token(self, position: int, count: int, plan: Script) -> bytes:
        record: dict[str, Any] = {
            "token": {
                "id": plan.token_ids[position] if plan.token_ids else FIRST_ID + position,
                "text": f" t{position}",
                "log_prob": -0.5,
            }
        }
        if position == count - 1:
            record["generated_text"] = "all of it"
            record["details"] = {"finish_reason": "length", "inputs": "prompt"}
            if plan.usage:
                record["details"]["generated_tokens"] = count
            if plan.prompt_tokens is not None:
                record["details"]["input_length"] = plan.prompt_tokens
        return _line(record)

    def end(self, count: int, plan: Script) -> bytes:
        return b""

    def error(self, text: str) -> bytes:
        return json.dumps({"error": text, "code": 424}).encode()  # LMI writes no newline


class _OpenAi:
    """Pieces of text, then token counts, then [DONE]."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.num_requested: int = body["max_tokens"]
        self._prompt_tokens = len(body["prompt"].split())

    def token(self, position: int, count: int, plan: Script) -> bytes:
        return self._event(
            {"choices": [{"index": 0, "text": f" t{position}", "finish_reason": None}], "usage": None}
        )

    def end(self, count: int, plan: Script) -> bytes:
        last = self._event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": None})
        usage = {
            "prompt_tokens": self._prompt_tokens if plan.prompt_tokens is None else plan.prompt_tokens,
            "completion_tokens": count,
        }
        counts = self._event({"choices": [], "usage": usage}) if plan.usage else b""
        return last + counts + b"data: [DONE]\n\n"

    def error(self, text: str) -> bytes:
        return self._event({"error": {"message": text, "type": "server_error", "code": "request_failed"}})

    def _event(self, record: dict[str, Any]) -> bytes:
        return b"data: " + _line(record) + b"\n"
