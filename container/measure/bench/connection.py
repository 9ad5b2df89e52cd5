"""One user's connection to a server, kept alive between requests."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from urllib.parse import urlsplit

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)
from urllib3.response import BaseHTTPResponse

from container.measure.bench.answer import BadAnswer, TimedOut
from container.measure.bench.dialects import Dialect, error_text

_READ_BYTES = 64 * 1024
_MAX_ERROR_BODY_BYTES = 64 * 1024
_MAX_ERROR_CHARACTERS = 300
_HEADERS = {"Content-Type": "application/json", "User-Agent": "lmi-bench"}


class BenchConnection:
    """Sends requests in one dialect. Not thread-safe."""

    def __init__(
        self, url: str, dialect: Dialect, timeout: float, headers: Mapping[str, str] | None = None
    ) -> None:
        """timeout: time limit of one request, in seconds; headers: extra headers sent with each request."""
        parts = urlsplit(url)
        self.dialect = dialect
        self._path = parts.path.rstrip("/") + dialect.path
        self._timeout = timeout
        self._headers = {**_HEADERS, **(headers or {})}
        self._pool = urllib3.connection_from_url(url, maxsize=1, retries=False)

    def post(self, body: bytes) -> Generator[bytes]:
        """Send a request and yield the bytes of its response as they arrive. Raises BadAnswer."""
        deadline = time.monotonic() + self._timeout
        try:
            response = self._pool.urlopen(
                "POST",
                self._path,
                body=body,
                headers=self._headers,
                timeout=self._timeout,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            try:
                if response.status != 200:
                    raise BadAnswer(self._refusal(response))
                yield from self._read(response, deadline)
            finally:
                response.close()  # closes the connection too, unless the whole response was read
                response.release_conn()  # the next request reopens a closed one
        except HTTPError as error:
            raise self._bad_answer(error) from error

    def _read(self, response: BaseHTTPResponse, deadline: float) -> Generator[bytes]:
        """Yield bytes as soon as they are received, without waiting for a whole chunk or a full buffer."""
        while data := response.read1(_READ_BYTES):
            yield data
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._too_late()
            # A limit per read would never stop a server that keeps sending a few bytes at a time.
            connection = response.connection
            if isinstance(connection, HTTPConnection) and connection.sock is not None:
                connection.sock.settimeout(remaining)

    def close(self) -> None:
        self._pool.close()

    def _too_late(self) -> TimedOut:
        return TimedOut(f"no complete response within {self._timeout:g} s")

    def _bad_answer(self, error: HTTPError) -> BadAnswer:
        """Convert a transport error. Equal errors get equal texts, because errors are counted by text."""
        where = f"{self._pool.host}:{self._pool.port}"
        match error:
            case NewConnectionError():
                return BadAnswer(f"cannot connect to {where}: {cause_of(error)}")
            case ConnectTimeoutError():
                return TimedOut(f"cannot connect to {where} within {self._timeout:g} s")
            case ReadTimeoutError():
                return self._too_late()
            case ProtocolError():
                return BadAnswer("the connection closed before the response was complete")
        return BadAnswer(f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS])

    def _refusal(self, response: BaseHTTPResponse) -> str:
        """Return the status and the server's error message."""
        message = error_message(response.read(_MAX_ERROR_BODY_BYTES))
        if response.status == 404:
            message = f"POST {self._path}: {message} (another --dialect, or another path in the URL?)"
        return f"HTTP {response.status}: {message}"[:_MAX_ERROR_CHARACTERS]


def cause_of(error: NewConnectionError) -> str:
    """Return the operating system's reason for a failed connection."""
    cause = error.__cause__
    return cause.strerror or str(cause) if isinstance(cause, OSError) else str(error)


def error_message(body: bytes) -> str:
    """Return the message in the body of an error or of /ping: JSON in one of the usual shapes, or plain text."""
    try:
        content = msgspec.json.decode(body)
    except ValueError:
        return body.decode("utf-8", "replace").strip()
    if isinstance(content, dict):
        content = content.get("error") or content.get("message") or content.get("reason") or content
    return error_text(content)
