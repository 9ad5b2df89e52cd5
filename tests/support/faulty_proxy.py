"""An HTTP proxy in front of a real S3 server. It delays, corrupts, truncates or cuts responses, returns errors, and
counts requests and bytes.

Clients use its address as the server's. It forwards the Host header unchanged, since that is signed.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tests.support.loopback import LoopbackServer, QuietHandler

_CHUNK_BYTES = 64 << 10
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A received request."""

    method: str
    key: str
    """The key of the object; empty for a listing."""
    query: str = ""

    @property
    def is_object(self) -> bool:
        """Whether the request reads the bytes of an object."""
        return self.method == "GET" and bool(self.key)


@dataclass(slots=True)
class Answer:
    """The response, which faults change."""

    status: int
    headers: dict[str, str]
    body: bytes
    first: int = 0
    """Offset of the body's first byte in the object."""


Matches = Callable[[ProxyRequest], bool]
Change = Callable[[ProxyRequest, Answer], Answer]


def every_object(request: ProxyRequest) -> bool:
    return request.is_object


def everything(request: ProxyRequest) -> bool:
    return True


def listing(request: ProxyRequest) -> bool:
    return not request.key


def head_of_part(request: ProxyRequest) -> bool:
    return request.method == "HEAD" and request.query.startswith("partNumber")


def object_named(name: str) -> Matches:
    """Match reads of objects with keys that end with `name`."""
    return lambda request: request.is_object and request.key.endswith(name)


def answer(status: int, code: str = "", **headers: str) -> Change:
    """Replace the response with an S3 error. headers: with `_` instead of `-` in the names."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()

    def change(request: ProxyRequest, response: Answer) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        described = {"Content-Type": "application/xml", "Content-Length": str(len(text)), **named}
        return Answer(status, described, text)

    return change


def corrupt(place: int) -> Change:
    """Corrupt one byte of the object in every read that includes it."""

    def change(request: ProxyRequest, response: Answer) -> Answer:
        offset = place - response.first
        if 0 <= offset < len(response.body):
            body = bytearray(response.body)
            body[offset] ^= 0x10
            response.body = bytes(body)
        return response

    return change


def truncate(size: int) -> Change:
    """Respond as if the object had this size."""

    def change(request: ProxyRequest, response: Answer) -> Answer:
        if response.first >= size:
            return answer(416, "InvalidRange")(request, response)
        response.body = response.body[: size - response.first]
        last = response.first + len(response.body) - 1
        response.headers["Content-Range"] = f"bytes {response.first}-{last}/{size}"
        response.headers["Content-Length"] = str(len(response.body))
        return response

    return change


def rewrite(old: bytes, new: bytes) -> Change:
    """Replace bytes in the body."""

    def change(request: ProxyRequest, response: Answer) -> Answer:
        response.body = response.body.replace(old, new)
        response.headers["Content-Length"] = str(len(response.body))
        return response

    return change


def without_headers(*prefixes: str) -> Change:
    """Remove headers, as if the server did not support them."""

    def change(request: ProxyRequest, response: Answer) -> Answer:
        response.headers = {k: v for k, v in response.headers.items() if not k.lower().startswith(prefixes)}
        return response

    return change


@dataclass(slots=True)
class _Rule:
    matches: Matches
    change: Change | None
    delay: float
    times: int


@dataclass(slots=True)
class FaultyProxy:
    """A proxy. Its methods may be called at any time, from any thread."""

    upstream: str
    port: int = 0
    object_bytes: int = 0
    """Bytes of objects sent to clients."""
    epoch: int = 0
    requests: list[ProxyRequest] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)
    _cuts: list[int] = field(default_factory=list)
    _hooks: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    """Held while a hook runs, to keep other connections from sending."""
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cuts_left(self) -> int:
        return len(self._cuts)

    def fault(
        self, matches: Matches, change: Change | None = None, *, delay: float = 0.0, times: int = 1_000_000
    ) -> None:
        """For the next `times` matching requests, wait `delay` seconds, then apply `change` to the response."""
        self._rules.append(_Rule(matches, change, delay, times))

    def cut_at(self, totals: list[int]) -> None:
        """Cut the sending connection each time the bytes of objects, counted from now, reach one of `totals`."""
        with self._lock:
            self._cuts = sorted(self.object_bytes + total for total in totals)

    def when_sent(self, total: int, call: Callable[[], None]) -> None:
        """Call `call` once, after `total` further bytes of objects and before the next ones are sent."""
        with self._lock:
            self._hooks.append((self.object_bytes + total, call))

    def heal(self) -> None:
        """Remove all faults, close connections that are sending, and reset the counters."""
        with self._lock:
            self.epoch += 1
            self._rules.clear()
            self._cuts.clear()
            self._hooks.clear()
            self.requests.clear()
            self.object_bytes = 0

    def rules_for(self, request: ProxyRequest) -> list[_Rule]:
        with self._lock:
            self.requests.append(request)
            found = [rule for rule in self._rules if rule.times > 0 and rule.matches(request)]
            for rule in found:
                rule.times -= 1
            return found

    def allow(self, count: int, epoch: int) -> tuple[int, bool]:
        """Return how many of the next `count` bytes may be sent, and whether to cut the connection after them.

        `epoch`: the epoch of the proxy when the response began.
        """
        with self._sending:
            with self._lock:
                due = [hook for hook in self._hooks if hook[0] <= self.object_bytes]
                self._hooks = [hook for hook in self._hooks if hook not in due]
            for _, call in due:
                call()
        with self._lock:
            if epoch != self.epoch:
                return 0, True
            cut = bool(self._cuts) and self._cuts[0] < self.object_bytes + count
            if cut:
                count = self._cuts.pop(0) - self.object_bytes
            self.object_bytes += count
            return count, cut


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        request = ProxyRequest(self.command, path.lstrip("/").partition("/")[2], address.query)
        rules = self.proxy.rules_for(request)
        for rule in rules:
            if rule.delay and self.proxy.closing.wait(rule.delay):
                self.close_connection = True
                return
        response = self._forward()
        for rule in rules:
            if rule.change is not None:
                response = rule.change(request, response)
        self._send(request, response)

    do_HEAD = do_GET  # noqa: N815

    def _forward(self) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.proxy.upstream).netloc, timeout=200)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            headers = {k: v for k, v in response.getheaders() if k.lower() not in _HOP_BY_HOP}
            body = response.read()
        finally:
            connection.close()
        if self.command != "HEAD":
            headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
            headers["Content-Length"] = str(len(body))
        first = headers.get("Content-Range", "bytes 0-").removeprefix("bytes ").partition("-")[0]
        return Answer(response.status, headers, body, int(first) if first.isdecimal() else 0)

    def _send(self, request: ProxyRequest, response: Answer) -> None:
        try:
            self.send_response_only(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            counted, epoch = request.is_object and response.status < 300, self.proxy.epoch
            for start in range(0, len(response.body), _CHUNK_BYTES):
                chunk = response.body[start : start + _CHUNK_BYTES]
                count, cut = self.proxy.allow(len(chunk), epoch) if counted else (len(chunk), False)
                self.wfile.write(chunk[:count])
                if cut:
                    self.close_connection = True
                    return
        except OSError:
            self.close_connection = True  # the client disconnected, as it may


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Run a proxy in front of the URL `upstream`, at first without faults."""
    proxy = FaultyProxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with LoopbackServer(handler) as server:
        proxy.port = server.server_port
        try:
            yield proxy
        finally:
            proxy.closing.set()
