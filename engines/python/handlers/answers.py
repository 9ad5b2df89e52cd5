"""Convert what a handler returns to the pieces of an HTTP response."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Generator, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from djl_python import Output
from djl_python.outputs import encode_json

from engines.errors import RequestFailed
from engines.invocations import AnswerHead, Invocation, InvocationOutput

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 * 1024 * 1024
"""Maximum body bytes per message. A longer body is sent in several messages."""
_FAILED = 424
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "No available memory for the cache blocks",
)
_NO_CONTENT = AnswerHead(HTTPStatus.NO_CONTENT, "No Content", ())
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")


class CannotAnswer(Exception):
    """The handler returned something that is not a response to its input."""


def check_load(result: Any) -> None:
    """Raise `CannotAnswer` if the call that loads the handler returned an error, or has not been awaited."""
    if inspect.isawaitable(result):
        raise CannotAnswer(
            f"the handler returned {type(result).__name__}; declare it with async def, or set option.async_mode=true"
        )
    if isinstance(result, Output) and result.code >= 300:
        raise CannotAnswer(f"the handler's first call returned {_error(result)}")


def response_pieces(request_id: str, output: Output | None) -> Iterator[InvocationOutput]:
    """Yield the messages of a response without a stream. Raises `CannotAnswer`."""
    if output is None:
        return _pieces(request_id, _NO_CONTENT, b"")
    return _pieces(request_id, head(output), body(output))


def batch_responses(batch: Sequence[Invocation], output: Any) -> Iterator[InvocationOutput]:
    """Return the responses to a batch. Raises `CannotAnswer` if a body is missing or the output is an error."""
    if output is None:
        bodies, common = [b""] * len(batch), _NO_CONTENT
    elif not isinstance(output, Output) or output.stream_content is not None:
        raise CannotAnswer("the handler must return an Output without a stream for a batch")
    elif output.code >= 300:
        raise CannotAnswer(f"the handler returned {_error(output)}")
    else:
        by_index = dict(_parts_by_index(output))
        if sorted(by_index) != list(range(len(batch))) or len(output.content) != len(batch):
            raise CannotAnswer(
                f"the handler returned {len(output.content)} parts for a batch of {len(batch)}"
            )
        bodies, common = [by_index[index] for index in range(len(batch))], head(output)
    return (piece for one, part in zip(batch, bodies, strict=True) for piece in _pieces(one.id, common, part))


def failure(request_id: str, error: Exception) -> InvocationOutput:
    """Return the response to a request whose call raised an error."""
    text = _text(error)
    if out_of_memory(error):
        no_room = AnswerHead(HTTPStatus.INSUFFICIENT_STORAGE, _phrase(text or "out of memory"), ())
        return InvocationOutput(request_id, no_room, last=True)
    output = Output().error(text or type(error).__name__, _FAILED)
    return InvocationOutput(request_id, head(output), body(output), last=True)


def stream_failure(request_id: str, error: Exception) -> InvocationOutput:
    """Return the end of a stream that raised an error."""
    logger.error("%s: the handler's stream failed", request_id, exc_info=error)
    return InvocationOutput.failed(request_id, RequestFailed(_text(error) or type(error).__name__))


def stream_of(output: Output) -> Generator[bytes, None, None]:
    """Yield the formatted pieces of an output's stream, without empty ones. Values become JSON, as in `Output.add`."""
    write = output.stream_output_formatter
    for item in output.stream_content or ():
        piece = item if write is None else write(item)
        if isinstance(piece, str):
            piece = piece.encode()
        elif piece is not None and not isinstance(piece, bytes | bytearray | memoryview):
            piece = encode_json(piece, indent=2)
        if piece:
            yield bytes(piece)


def head(output: Output) -> AnswerHead:
    """Return status and headers. Raises `CannotAnswer` if they are not valid in HTTP."""
    wrong = [name for name in output.properties if not _HEADER_NAME.fullmatch(str(name))]
    if wrong or not isinstance(output.code, int) or not 200 <= output.code <= 599:
        what = f"the header name {wrong[0]!r}" if wrong else f"the status {output.code!r}"
        raise CannotAnswer(f"the handler returned {what}, which is not valid in HTTP")
    headers = tuple((_phrase(name), _phrase(value)) for name, value in output.properties.items())
    return AnswerHead(output.code, _phrase(output.message), headers)


def body(output: Output) -> bytes:
    """Return the part `data`, or else the first part; empty if there are no parts. Raises `CannotAnswer`."""
    content = output.content
    if content.is_empty():
        return b""
    return _part(content.get("data") if content.contains("data") else content.value_at(0))


def finalize(output: Any) -> None:
    """Call the finalizer that the handler has set on its output, if any. Does nothing if it returned no `Output`."""
    try:
        if isinstance(output, Output):
            output.execute_finalize()
    except Exception:  # the response has been sent, or an error instead
        logger.exception("the handler's finalizer failed")


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of any library means that CPU or GPU memory is exhausted."""
    if type(error).__name__ in ("OutOfMemoryError", "MemoryError"):
        return True
    return any(text in _text(error) for text in _OUT_OF_MEMORY)


def _pieces(request_id: str, first: AnswerHead, data: bytes) -> Iterator[InvocationOutput]:
    several = len(data) > _PIECE_BYTES
    yield InvocationOutput(request_id, first, data[:_PIECE_BYTES], last=not several, whole=several)
    for start in range(_PIECE_BYTES, len(data), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        yield InvocationOutput(request_id, body=data[start:end], last=end >= len(data))


def _parts_by_index(output: Output) -> Iterator[tuple[int, bytes]]:
    """Yield (index of the request, body). The index is in a key such as `batch_003.data`, or the part's position."""
    for place, (key, value) in enumerate(output.content):
        number = key.partition(".")[0].removeprefix("batch_")
        yield int(number) if key.startswith("batch_") and number.isdecimal() else place, _part(value)


def _part(value: object) -> bytes:
    """Return a part as bytes. A handler may put any value into an output's content without `Output.add`."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise CannotAnswer(
        f"the handler returned a part of type {type(value).__name__}; it must be bytes or text"
    )


def _phrase(text: object) -> str:
    """Return the text in a form that is valid in the head of an HTTP response: one line, Latin-1."""
    line = " ".join(str(text).split())[:4096]
    return "".join(c if c.isprintable() else " " for c in line).encode("latin-1", "replace").decode("latin-1")


def _text(error: Exception) -> str:
    """Return an error's message, which UTF-8 can encode: client input in it may contain lone surrogates."""
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:  # `__str__` is code of the handler or its libraries
        return type(error).__name__


def _error(output: Output) -> str:
    return f"{output.code} {output.message}: {body(output)[:500].decode(errors='replace')}"
