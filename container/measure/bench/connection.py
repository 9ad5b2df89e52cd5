"""One user's connection to a server, kept alive from request to request."""

from __future__ import annotations

import time
from collections.abc import Generator
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

from container.measure.bench.answer import BadAnswer
from container.measure.bench.dialects import Dialect, error_text

_READ_BYTES = 64 * 1024
_MAX_ERROR_BODY_BYTES = 64 * 1024
_MAX_ERROR_CHARACTERS = 300
_HEADERS = {"Content-Type": "application/json", "User-Agent": "lmi-bench"}


class Connection:
    """Posts bodies in one dialect. For one thread."""

    def __init__(self, url: str, dialect: Dialect, timeout: float) -> None:
        """`timeout`: seconds that one request may take as a whole."""
        parts = urlsplit(url)
        self.dialect = dialect
        self._path = parts.path.rstrip("/") + dialect.path
        self._timeout = timeout
        self._pool = urllib3.connection_from_url(url, maxsize=1, retries=False)

    def post(self, body: bytes) -> Generator[bytes]:
        """Send a request; the bytes of its answer as they come.

        Raises: BadAnswer, for whatever goes wrong on the way.
        """
        deadline = time.monotonic() + self._timeout
        try:
            response = self._pool.urlopen(
                "POST",
                self._path,
                body=body,
                headers=_HEADERS,
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
                response.close()  # the connection too, unless the answer was read to its end
                response.release_conn()  # a closed one is opened anew by the next request
        except HTTPError as error:
            raise BadAnswer(self._told(error)) from error

    def _read(self, response: BaseHTTPResponse, deadline: float) -> Generator[bytes]:
        """What has come, at once; a whole chunk is not waited for, nor a full buffer."""
        while data := response.read1(_READ_BYTES):
            yield data
            left = deadline - time.monotonic()
            if left <= 0:
                raise BadAnswer(self._too_late())
            # One that sends a little every now and then would never run into a time limit for each read.
            connection = response.connection
            if isinstance(connection, HTTPConnection) and connection.sock is not None:
                connection.sock.settimeout(left)

    def close(self) -> None:
        self._pool.close()

    def _too_late(self) -> str:
        return f"no complete answer within {self._timeout:g} s"

    def _told(self, error: HTTPError) -> str:
        """In words that are the same for all requests with the same trouble: they are counted by their text."""
        where = f"{self._pool.host}:{self._pool.port}"
        match error:
            case NewConnectionError():
                return f"cannot connect to {where}: {cause_of(error)}"
            case ConnectTimeoutError():
                return f"cannot connect to {where} within {self._timeout:g} s"
            case ReadTimeoutError():
                return self._too_late()
            case ProtocolError():
                return "the connection broke off before the answer was complete"
        return f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS]

    def _refusal(self, response: BaseHTTPResponse) -> str:
        """The status and the server's own words, whichever server it is."""
        said = _words(response.read(_MAX_ERROR_BODY_BYTES))
        if response.status == 404:
            said = f"POST {self._path}: {said} (another --dialect, or another path in the URL?)"
        return f"HTTP {response.status}: {said}"[:_MAX_ERROR_CHARACTERS]


def cause_of(error: NewConnectionError) -> str:
    """Why there is no connection, in the system's words."""
    cause = error.__cause__
    return cause.strerror or str(cause) if isinstance(cause, OSError) else str(error)


def _words(body: bytes) -> str:
    """What an error's body says, in JSON of any of the usual shapes or in plain text."""
    try:
        said = msgspec.json.decode(body)
    except ValueError:
        return body.decode("utf-8", "replace").strip()
    if isinstance(said, dict):
        said = said.get("error") or said.get("message") or said
    return error_text(said)
