"""Read request bodies, with limits on the size of each body and of all bodies together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import RequestEntityTooLarge

from engines.errors import InvalidRequest, Overloaded
from lmi_server.errors import BodyTooSlow, UnsupportedMediaType
from lmi_server.http.json_object import parse_object
from lmi_server.values.show import as_json

MIN_BYTES_IN_FLIGHT = 128 * 1024 * 1024
"""Minimum limit on all bodies that one web process reads and parses at a time. Two maximum-size bodies always fit."""
_PIECE_BYTES = 64 * 1024
_FIRST_PIECE_BYTES = 1024
_ACCEPTED_TYPES = "application/json (UTF-8)"


class Bodies:
    """Reads request bodies, and limits their total size in this process."""

    def __init__(self, max_request_size: int) -> None:
        """`max_request_size`: maximum bytes of one body."""
        self._max_request_size = max_request_size
        self._max_in_flight = max(MIN_BYTES_IN_FLIGHT, 2 * max_request_size)
        self._in_flight = 0
        self._uploads: dict[int, bytearray] = {}
        """Incomplete bodies by their `id()`."""
        self._waiting = 0

    @contextmanager
    def json_object(self, request: Request) -> Iterator[dict[str, Any]]:
        """Read the JSON object in a request's body. The body counts as in flight until the `with` block ends.

        Raises:
            UnsupportedMediaType: the headers declare another type, or compression.
            InvalidRequest: the body is not a JSON object.
            The errors of `raw`.
        """
        _check_media_type(request)
        with self.raw(request) as data:
            yield parse_object(data)

    @contextmanager
    def raw(self, request: Request) -> Iterator[bytearray]:
        """Read a request's body of any type. The body counts as in flight until the `with` block ends.

        Raises:
            InvalidRequest: the body is incomplete.
            BodyTooSlow: the client takes too long to send the body.
            Overloaded: too many bytes of bodies are in flight, and no incomplete body is larger.
            werkzeug.exceptions.RequestEntityTooLarge: the body is larger than `max_request_size`.
        """
        data = bytearray()
        self._uploads[id(data)] = data
        try:
            for piece in self._pieces(request):
                # Count bytes when they arrive: a client that announces a large body and sends nothing uses no quota.
                self._make_room(data, len(piece))
                self._in_flight += len(piece)
                data += piece
            self._make_room(data, 0)  # it may have been evicted while the end of a chunked body was awaited
            del self._uploads[id(data)]
            yield data
        finally:
            self._uploads.pop(id(data), None)
            self._in_flight -= len(data)

    def _make_room(self, data: bytearray, num_bytes: int) -> None:
        """Make room for more bytes of an incomplete body. If there is none, evict the largest incomplete body, so that
        slow uploads keep no smaller body out. Its bytes no longer count, and it is rejected when more arrives.

        Raises `Overloaded` if `data` has been evicted, or no other body is larger.
        """
        if id(data) not in self._uploads:
            raise Overloaded(_TOO_MANY_BYTES)
        if self._in_flight + num_bytes > self._max_in_flight:
            largest = max(self._uploads.values(), key=len)
            if len(largest) <= len(data) + num_bytes:
                raise Overloaded(_TOO_MANY_BYTES)
            del self._uploads[id(largest)]
            self._in_flight -= len(largest)
            largest.clear()

    @contextmanager
    def waiting(self, num_bytes: int) -> Iterator[None]:
        """Count a body in flight that waits for a model to load. At most half of the limit may wait.

        Raises Overloaded.
        """
        if self._waiting + num_bytes > self._max_in_flight // 2:
            raise Overloaded("too many large request bodies wait for models to load; try again later")
        self._waiting += num_bytes
        try:
            yield
        finally:
            self._waiting -= num_bytes

    def _pieces(self, request: Request) -> Iterator[bytes]:
        length = request.content_length
        if length is not None and length > self._max_request_size:
            raise RequestEntityTooLarge
        remaining = limit = self._max_request_size + 1 if length is None else length
        stream = request.environ["wsgi.input"]
        try:
            # The bytes of a read count when all have arrived. Read at most as many as already count.
            size = min(limit, _FIRST_PIECE_BYTES)
            while remaining and (piece := stream.read(size)):
                remaining -= len(piece)
                size = min(remaining, _PIECE_BYTES, limit - remaining)
                yield piece
        except TimeoutError as error:
            raise BodyTooSlow("body: the client took too long to send it") from error
        except (OSError, ParseException) as error:  # a broken or malformed chunked body
            raise InvalidRequest(_INCOMPLETE_BODY) from error
        if length is None and not remaining:
            raise RequestEntityTooLarge
        if length is not None and remaining:
            raise InvalidRequest(_INCOMPLETE_BODY)


_INCOMPLETE_BODY = "body: the connection closed before the whole body arrived"
_TOO_MANY_BYTES = "too many large request bodies are being read at once; try again later"


def _check_media_type(request: Request) -> None:
    """Reject types other than JSON, and compression.

    A missing type and `application/octet-stream` (common defaults) are accepted, and so is `application/jsonlines`, the
    type of SageMaker batch transform with one line per request.
    """
    coding = request.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding: given {as_json(coding)}; accepted: an uncompressed body, without this header"
        )
    if not request.content_type:
        return
    mimetype = request.mimetype
    json_like = mimetype == "application/json" or (
        mimetype.startswith("application/") and mimetype.endswith("+json")
    )
    if not json_like and mimetype not in ("application/octet-stream", "application/jsonlines"):
        raise UnsupportedMediaType(
            f"Content-Type: given {as_json(request.content_type)}; accepted: {_ACCEPTED_TYPES}"
        )
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(
            f"Content-Type: given charset {as_json(charset)}; accepted: {_ACCEPTED_TYPES}"
        )
