"""A small HTTP server for both dialects that answers each request by a script."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    prompt_tokens: int | None = None
    """The number of prompt tokens that the server reports, in both dialects."""
    error_after: int | None = None
    """Number of tokens after which an error record ends the stream."""
    break_after: int | None = None
    """Number of tokens after which the connection is reset."""
    end_after: int | None = None
    """Number of tokens after which the stream ends, well-formed but without its final record."""
    token_ids: tuple[int, ...] = ()
    """Ids of the tokens; empty: FIRST_ID and following."""
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


class ScriptedServer(LoopbackServer):
    """Answers each request by the script that `plan` returns for it."""

    def __init__(
        self,
        plan: Planner,
        ping: Callable[[], tuple[int, bytes]] = lambda: (200, b"{}"),
        metrics: Callable[[], bytes] = bytes,
        models: tuple[int, bytes] = (404, b""),
    ) -> None:
        """models: response to `GET /v1/models`."""
        super().__init__(_Handler)
        self.seen: list[SeenRequest] = []
        self.lock = threading.Lock()
        self.max_in_flight = 0
        self._in_flight = 0
        self.plan = plan
        self.ping = ping
        self.metrics = metrics
        self.models = models

    def begin(self, seen: SeenRequest) -> Script:
        with self.lock:
            self.seen.append(seen)
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
            return self.plan(len(self.seen) - 1, seen.body)

    def end(self) -> None:
        with self.lock:
            self._in_flight -= 1


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ScriptedServer

    def do_GET(self) -> None:
        answers = {
            "/ping": self.server.ping,
            "/metrics": lambda: (200, self.server.metrics()),
            "/v1/models": lambda: self.server.models,
        }
        self._send_whole(*answers.get(self.path, lambda: (404, b""))())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = SeenRequest(self.path, body, self.client_address, time.perf_counter(), dict(self.headers))
        plan = self.server.begin(seen)
        try:
            if plan.status != 200:
                self._send_whole(plan.status, plan.body)
            else:
                self._stream(plan, seen)
        finally:
            self.server.end()

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
        make_stream = _lmi if seen.path.endswith("/invocations") else _openai
        if self._send_records(make_stream(seen.body, plan), plan, seen, write) and plan.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send_records(
        self, stream: _Stream, plan: Script, seen: SeenRequest, write: Callable[[bytes], Any]
    ) -> bool:
        """Write all records of a response. Return False if the connection was reset instead."""
        for position, record in enumerate(stream.tokens):
            if position == plan.break_after:
                self._reset()
                return False
            if position == plan.error_after:
                write(stream.error)
                return True
            if position == plan.end_after:
                return True
            time.sleep(plan.first_seconds if position == 0 else plan.gap_seconds)
            seen.token_times.append(time.perf_counter())
            write(record)
            if plan.read is not None and not plan.read.acquire(timeout=200):
                return False
        write(stream.end)
        return True

    def _write_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _reset(self) -> None:
        """Reset the connection instead of closing it properly."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


@dataclass(frozen=True, slots=True)
class _Stream:
    """The records of a response."""

    tokens: list[bytes]
    end: bytes
    """What follows the tokens."""
    error: bytes
    """A record that reports an error."""


def _lmi(body: dict[str, Any], plan: Script) -> _Stream:
    """One record per token; the final one has the text and the details."""
    count = body["parameters"]["max_new_tokens"]
    ids = plan.token_ids or range(FIRST_ID, FIRST_ID + count)
    records: list[dict[str, Any]] = [
        {"token": {"id": ids[position], "text": f" t{position}", "log_prob": -0.5}}
        for position in range(count)
    ]
    details = {"finish_reason": "length", "inputs": "prompt", "generated_tokens": count}
    if plan.prompt_tokens is not None:
        details["input_length"] = plan.prompt_tokens
    records[-1] |= {"generated_text": "all of it", "details": details}
    error = _line({"error": "planned trouble", "code": 424}).rstrip()  # LMI writes no newline
    return _Stream([_line(record) for record in records], b"", error)


def _openai(body: dict[str, Any], plan: Script) -> _Stream:
    """Pieces of text, then token counts, then [DONE]."""
    count = body["max_tokens"]
    pieces = [{"index": 0, "text": f" t{position}", "finish_reason": None} for position in range(count)]
    *tokens, last = (
        _event({"choices": [piece], "usage": None})
        for piece in (*pieces, {"index": 0, "text": "", "finish_reason": "length"})
    )
    prompt_tokens = len(body["prompt"].split()) if plan.prompt_tokens is None else plan.prompt_tokens
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count}
    end = last + _event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    error = {"message": "planned trouble", "type": "server_error", "code": "request_failed"}
    return _Stream(tokens, end, _event({"error": error}))


def _line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _event(record: Any) -> bytes:
    return b"data: " + _line(record) + b"\n"
