"""One request to a container: its response, whole or as an event stream, and its errors as on the platform."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping

from container.endpoint.api import ApiError
from container.endpoint.event_stream import exception, payload_part
from container.endpoint.traffic import Lease, Traffic
from container.run.local_server import HOST

INVOCATIONS = "/invocations"
MAX_BODY_BYTES = 25 << 20
"""Limit of a request, and of a response that is not streamed."""
_PIECE_BYTES = 64 << 10
_MAX_MESSAGE_CHARS = 2048
_TIMED_OUT = "Your invocation timed out while waiting for a response from container primary."
_FAILURES = (OSError, http.client.HTTPException)


class ContainerCall:
    """A request that a container has answered with a status below 400. `close` ends its lease.

    Each call has its own connection: the container might close a kept-alive one just when a request is sent.
    """

    def __init__(
        self,
        traffic: Traffic,
        lease: Lease,
        headers: Mapping[str, str],
        body: bytes,
        limit: float,
        path: str = INVOCATIONS,
    ) -> None:
        """Send the request and wait for the status. Raises ApiError.

        limit: timeout for the whole response, in seconds.
        """
        self._traffic = traffic
        self._lease = lease
        self._deadline = time.monotonic() + limit
        self._first_byte: float | None = None
        self._status = 0
        self._complete = False
        self._open = True
        self._connection = http.client.HTTPConnection(HOST, lease.container.port, timeout=limit)
        try:
            self._connection.request("POST", path, body, dict(headers))
            self._socket = self._connection.sock
            self._response = self._connection.getresponse()
        except _FAILURES as error:
            self.close()
            raise self._no_answer(error) from error
        self._status = self._response.status
        if self._status >= 400:
            raise self._model_error(self._status, self.read().decode(errors="replace"))

    def header(self, name: str) -> str | None:
        """Return a header of the container's response."""
        return self._response.getheader(name)

    @property
    def content_type(self) -> str:
        return self.header("Content-Type") or "application/octet-stream"

    def read(self, most: int = MAX_BODY_BYTES) -> bytes:
        """Return the whole response, at most `most` bytes. Raises ApiError."""
        data = bytearray()
        try:
            for piece in self._pieces():
                data += piece
                if len(data) > most:
                    error = self._model_error(self._status, f"the answer has more than {most} bytes")
                    self._status = 0  # counts as failed, not as abandoned by the client
                    raise error
        except _FAILURES as error:
            raise self._no_answer(error) from error
        finally:
            self.close()
        return bytes(data)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the response as an event stream, each chunk when it arrives.

        Chunks are split in two. On the platform, too, parts end anywhere: a client must not take each for a line.
        """
        try:
            for piece in self._pieces():
                self._note_first_byte()
                middle = (len(piece) + 1) // 2
                yield b"".join(payload_part(half) for half in (piece[:middle], piece[middle:]) if half)
        except _FAILURES as error:
            code = "ModelInvocationTimeExceeded" if isinstance(error, TimeoutError) else "StreamBroken"
            message = f"The container's stream ended early: {type(error).__name__}"
            self.close()  # so that the failure is counted before the client sees it
            yield exception("ModelStreamError", {"Message": message, "ErrorCode": code})
        finally:
            self.close()

    def unframed(self) -> Iterator[bytes]:
        """Yield the response as it is, each chunk when it arrives. It ends early if the container's response does."""
        try:
            for piece in self._pieces():
                self._note_first_byte()
                yield piece
        except _FAILURES:
            return
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection and end the lease. Idempotent."""
        if self._open:
            self._open = False
            self._connection.close()
            abandoned = self._status > 0 and not self._complete
            self._traffic.release(self._lease, self._status, self._first_byte, abandoned)

    def _pieces(self) -> Iterator[bytes]:
        try:
            while True:
                self._socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
                piece = self._response.read1(_PIECE_BYTES)
                if not piece:
                    if self._response.length:  # `read1` does not notice it
                        raise http.client.IncompleteRead(b"", self._response.length)
                    self._complete = True
                    return
                yield piece
        except _FAILURES:
            self._status = 0
            raise

    def _note_first_byte(self) -> None:
        if self._first_byte is None:
            self._first_byte = time.monotonic() - self._lease.started

    def _no_answer(self, error: Exception) -> ApiError:
        if isinstance(error, TimeoutError):
            return self._model_error(0, _TIMED_OUT)
        return self._model_error(0, f"could not load the entire response body ({type(error).__name__})")

    def _model_error(self, status: int, text: str) -> ApiError:
        who = "client" if 400 <= status < 500 else "server"
        log = self._lease.container.log
        return ApiError(
            "ModelError",
            f'Received {who} error ({status}) from primary with message "{text[:_MAX_MESSAGE_CHARS]}". '
            f"See {log} for more information.",
            424,
            OriginalStatusCode=status,
            OriginalMessage=text[:_MAX_MESSAGE_CHARS],
            LogStreamArn=log,
        )
