"""An HTTP proxy before a real S3 server: it cuts, delays, corrupts, truncates, answers errors, and counts.

A client takes its address for the server's. The Host header goes through as it came, for it is signed.
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
class Asked:
    """A request as it came."""

    method: str
    key: str
    """The object's; empty for a listing."""
    query: str = ""

    @property
    def is_object(self) -> bool:
        """Whether it reads an object's bytes."""
        return self.method == "GET" and bool(self.key)


@dataclass(slots=True)
class Answer:
    """What goes back; faults change it."""

    status: int
    headers: dict[str, str]
    body: bytes
    first: int = 0
    """Place of the body's first byte in its object."""


Matches = Callable[[Asked], bool]
Change = Callable[[Asked, Answer], Answer]


def every_object(asked: Asked) -> bool:
    return asked.is_object


def everything(asked: Asked) -> bool:
    return True


def listing(asked: Asked) -> bool:
    return not asked.key


def head_of_part(asked: Asked) -> bool:
    return asked.method == "HEAD" and asked.query.startswith("partNumber")


def object_named(name: str) -> Matches:
    """Reads of the bytes of objects whose keys end so."""
    return lambda asked: asked.is_object and asked.key.endswith(name)


def answer(status: int, code: str = "") -> Change:
    """S3's error answer in place of the real one."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()

    def change(asked: Asked, given: Answer) -> Answer:
        return Answer(status, {"Content-Type": "application/xml", "Content-Length": str(len(text))}, text)

    return change


def corrupt(place: int) -> Change:
    """One byte of the object, wherever a read comes past it."""

    def change(asked: Asked, given: Answer) -> Answer:
        offset = place - given.first
        if 0 <= offset < len(given.body):
            body = bytearray(given.body)
            body[offset] ^= 0x10
            given.body = bytes(body)
        return given

    return change


def truncate(size: int) -> Change:
    """As if the object ended there."""

    def change(asked: Asked, given: Answer) -> Answer:
        if given.first >= size:
            return answer(416, "InvalidRange")(asked, given)
        given.body = given.body[: size - given.first]
        last = given.first + len(given.body) - 1
        given.headers["Content-Range"] = f"bytes {given.first}-{last}/{size}"
        given.headers["Content-Length"] = str(len(given.body))
        return given

    return change


def rewrite(old: bytes, new: bytes) -> Change:
    """Other bytes in the body."""

    def change(asked: Asked, given: Answer) -> Answer:
        given.body = given.body.replace(old, new)
        given.headers["Content-Length"] = str(len(given.body))
        return given

    return change


def without_headers(*prefixes: str) -> Change:
    """As from a server that does not know these."""

    def change(asked: Asked, given: Answer) -> Answer:
        given.headers = {k: v for k, v in given.headers.items() if not k.lower().startswith(prefixes)}
        return given

    return change


@dataclass(slots=True)
class _Rule:
    matches: Matches
    change: Change | None
    delay: float
    times: int


@dataclass(slots=True)
class FaultyProxy:
    """One proxy. Its methods may be called at any time, from any thread."""

    upstream: str
    port: int = 0
    object_bytes: int = 0
    """Bytes of objects that were sent to the client."""
    epoch: int = 0
    requests: list[Asked] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)
    _cuts: list[int] = field(default_factory=list)
    _hooks: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    """Held while a hook runs, so that no other connection sends meanwhile."""
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
        """From now on, for so many matching requests: wait `delay` seconds, then answer with `change`."""
        self._rules.append(_Rule(matches, change, delay, times))

    def cut_at(self, totals: list[int]) -> None:
        """Close the connection at hand when so many bytes of objects have been sent in all."""
        with self._lock:
            self._cuts = sorted(self.object_bytes + total for total in totals)

    def when_sent(self, total: int, call: Callable[[], None]) -> None:
        """Call once, before further bytes go out, when so many bytes of objects have been sent from now on."""
        with self._lock:
            self._hooks.append((self.object_bytes + total, call))

    def heal(self) -> None:
        """No faults any more, connections that are sending are closed, counters start anew."""
        with self._lock:
            self.epoch += 1
            self._rules.clear()
            self._cuts.clear()
            self._hooks.clear()
            self.requests.clear()
            self.object_bytes = 0

    def rules_for(self, asked: Asked) -> list[_Rule]:
        with self._lock:
            self.requests.append(asked)
            found = [rule for rule in self._rules if rule.times > 0 and rule.matches(asked)]
            for rule in found:
                rule.times -= 1
            return found

    def allow(self, count: int, epoch: int) -> tuple[int, bool]:
        """(bytes of an object that may be sent of `count`, whether the connection is cut behind them).

        `epoch` is the proxy's when the answer began.
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
        asked = Asked(self.command, path.lstrip("/").partition("/")[2], address.query)
        rules = self.proxy.rules_for(asked)
        for rule in rules:
            if rule.delay and self.proxy.closing.wait(rule.delay):
                self.close_connection = True
                return
        given = self._forward()
        for rule in rules:
            if rule.change is not None:
                given = rule.change(asked, given)
        self._send(asked, given)

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

    def _send(self, asked: Asked, given: Answer) -> None:
        try:
            self.send_response_only(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            counted, epoch = asked.is_object and given.status < 300, self.proxy.epoch
            for start in range(0, len(given.body), _CHUNK_BYTES):
                chunk = given.body[start : start + _CHUNK_BYTES]
                count, cut = self.proxy.allow(len(chunk), epoch) if counted else (len(chunk), False)
                self.wfile.write(chunk[:count])
                if cut:
                    self.close_connection = True
                    return
        except OSError:
            self.close_connection = True  # the client went away, which is its right


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """A proxy before `upstream`, a URL; without faults until it is told some."""
    proxy = FaultyProxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with LoopbackServer(handler) as server:
        proxy.port = server.server_port
        try:
            yield proxy
        finally:
            proxy.closing.set()
