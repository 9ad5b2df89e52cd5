"""A small HTTP server that speaks both dialects and does to each request what its plan says."""

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
"""Token k of an answer has the id FIRST_ID + k."""


@dataclass(frozen=True, slots=True)
class Script:
    """What one request gets."""

    status: int = 200
    body: bytes = b""
    """The whole answer where the status is not 200."""
    first_seconds: float = 0.0
    """Before the first token."""
    gap_seconds: float = 0.0
    """Before each other token."""
    extra_tokens: int = 0
    """More (or, below 0, fewer) tokens than were asked for."""
    prompt_tokens: int | None = None
    """What the server says it counted, in both dialects."""
    usage: bool = True
    """Whether the counts are told."""
    error_after: int | None = None
    """An error record after so many tokens, and the end."""
    break_after: int | None = None
    """The connection is cut after so many tokens."""
    end_after: int | None = None
    """The stream ends well-formed after so many tokens, without its last record."""
    token_ids: tuple[int, ...] = ()
    """Ids of the tokens, in place of those from FIRST_ID on."""
    raw: bytes | None = None
    """Sent as the whole stream instead of records."""
    wait_for: threading.Event | None = None
    """Waited for before the first token."""
    read: threading.Semaphore | None = None
    """Waited for after each token: the client has read it."""
    chunked: bool = True
    """False: the end of the connection is the end of the answer, as HTTP/1.0 has it."""


Planner = Callable[[int, dict[str, Any]], Script]
"""From the request's number, in the order of arrival, and its body."""


@dataclass(slots=True)
class SeenRequest:
    """One request as the server saw it. Filled by the thread that answers it."""

    path: str
    body: dict[str, Any]
    connection: tuple[str, int]
    """The client's address: the same one is the same connection."""
    arrived: float
    """perf_counter, as all times here."""
    headers: dict[str, str]
    token_times: list[float] = field(default_factory=list)
    """When each token was written."""
    ended: float = 0.0


class ScriptedServer:
    """Listens on a free port until left."""

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
        self._whole(*answers.get(self.path, lambda: (404, b""))())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = SeenRequest(self.path, body, self.client_address, time.perf_counter(), dict(self.headers))
        plan = self.server.owner.begin(seen)
        try:
            if plan.status != 200:
                self._whole(plan.status, plan.body)
            else:
                self._stream(plan, seen)
        finally:
            self.server.owner.end()

    def _whole(self, status: int, body: bytes) -> None:
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
        write = self._chunk if plan.chunked else self.wfile.write
        if plan.wait_for is not None and not plan.wait_for.wait(200):
            return
        if plan.raw is not None:
            write(plan.raw)
        else:
            speaker = _Lmi(seen.body) if seen.path.endswith("/invocations") else _OpenAi(seen.body)
            if not self._speak(speaker, plan, seen, write):
                return
        seen.ended = time.perf_counter()
        if plan.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _speak(
        self, speaker: _Lmi | _OpenAi, plan: Script, seen: SeenRequest, write: Callable[[bytes], Any]
    ) -> bool:
        """All records of an answer; False when the connection was cut instead."""
        count = speaker.wanted + plan.extra_tokens
        for place in range(count):
            if place == plan.break_after:
                self._cut()
                return False
            if place == plan.error_after:
                write(speaker.error("planned trouble"))
                return True
            if place == plan.end_after:
                return True
            time.sleep(plan.first_seconds if place == 0 else plan.gap_seconds)
            seen.token_times.append(time.perf_counter())
            write(speaker.token(place, count, plan))
            if plan.read is not None and not plan.read.acquire(timeout=200):
                return False
        write(speaker.end(count, plan))
        return True

    def _chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _cut(self) -> None:
        """The connection is reset, not closed in good order."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


class _Lmi:
    """A record for each token, the last one with the text and the details."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.wanted: int = body["parameters"]["max_new_tokens"]

    def token(self, place: int, count: int, plan: Script) -> bytes:
        record: dict[str, Any] = {
            "token": {
                "id": plan.token_ids[place] if plan.token_ids else FIRST_ID + place,
                "text": f" t{place}",
                "log_prob": -0.5,
            }
        }
        if place == count - 1:
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
        return json.dumps({"error": text, "code": 424}).encode()  # LMI writes no end of line


class _OpenAi:
    """Pieces of text, then the counts, then [DONE]."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.wanted: int = body["max_tokens"]
        self._prompt_tokens = len(body["prompt"].split())

    def token(self, place: int, count: int, plan: Script) -> bytes:
        return self._event(
            {"choices": [{"index": 0, "text": f" t{place}", "finish_reason": None}], "usage": None}
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
