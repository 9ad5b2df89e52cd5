"""Calls of a handler: requests become an `Input`, and its `Output` becomes an answer to each of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from djl_python import Input, Output
from djl_python.outputs import encode_json

from engines.invocations import AnswerHead, Invocation, InvocationOutput
from engines.python.handlers.entry import Handler

logger = logging.getLogger(__name__)

Deliver = Callable[[list[InvocationOutput]], Collection[str]]
"""Takes pieces of answers, perhaps none; returns the ids of requests that want no more."""

_PIECE_BYTES = 16 * 1024 * 1024
"""A longer body is sent in several messages."""
_FAILED = 424
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")


class CannotAnswer(Exception):
    """The handler has returned something that is no answer to what it was given."""


def warm_up(handler: Handler, properties: dict[str, str]) -> None:
    """Make the call without content by which a handler loads its model.

    Raises: whatever it raises; `CannotAnswer`: it reports an error.
    """
    inputs = Input()
    inputs.properties = dict(properties)
    output = handler(inputs)
    if isinstance(output, Output) and output.code >= 300:
        raise CannotAnswer(
            f"the handler's first call returned {output.code} {output.message}: {_shown(output)}"
        )


class Calls:
    """Calls one handler, one batch at a time."""

    def __init__(self, handler: Handler, deliver: Deliver) -> None:
        self._handler = handler
        self._deliver = deliver

    def run(self, batch: Sequence[Invocation]) -> list[str]:
        """Answer a batch. Returns the ids of requests to be run again alone: the call with all of them failed."""
        if len(batch) > 1 and not self._handler.takes_batches:
            for invocation in batch:
                self._run_alone(invocation)
            return []
        if len(batch) == 1:
            self._run_alone(batch[0])
            return []
        try:
            output = self._handler(_batch_input(batch))
            answers = _batch_answers(batch, output)
        except Exception:  # the call's edge: whatever a request can break, it breaks for itself
            logger.exception("a call with %d requests failed; each runs again alone", len(batch))
            return [invocation.id for invocation in batch]
        for request_id, head, body in answers:
            self._send(request_id, head, body)
        _finalize(output)
        return []

    def _run_alone(self, invocation: Invocation) -> None:
        try:
            output = self._handler(_single_input(invocation))
            if output is None:
                self._send(invocation.id, AnswerHead(204, "No Content", ()), b"")
            elif not isinstance(output, Output):
                raise CannotAnswer(
                    f"the handler returned {type(output).__name__}; it must return an Output or None"
                )
            else:
                self._answer(invocation.id, output)
        except Exception as error:  # the call's edge
            logger.exception("%s: the handler failed", invocation.id)
            self._fail(invocation.id, error)

    def _answer(self, request_id: str, output: Output) -> None:
        if output.stream_content is None:
            self._send(request_id, _head(output), _only_part(output))
        else:
            self._stream(request_id, output, output.stream_content)
        _finalize(output)

    def _stream(self, request_id: str, output: Output, content: Iterable[Any]) -> None:
        """Send a stream piece by piece. An error before the first piece is raised; a later one ends the stream."""
        pieces = _formatted(output, content)
        first = next(pieces, b"")
        forgotten = self._deliver([InvocationOutput(request_id, _head(output), first)])
        try:
            while request_id not in forgotten and (piece := next(pieces, None)) is not None:
                forgotten = self._deliver([InvocationOutput(request_id, body=piece)])
        except Exception as error:
            logger.exception("%s: the handler's stream failed", request_id)
            record = encode_json({"error": str(error), "code": _FAILED}) + b"\n"
            self._deliver([InvocationOutput(request_id, body=record)])
        finally:
            pieces.close()
        self._deliver([InvocationOutput(request_id, last=True)])

    def _send(self, request_id: str, head: AnswerHead, body: bytes) -> None:
        self._deliver(
            [InvocationOutput(request_id, head, body[:_PIECE_BYTES], last=len(body) <= _PIECE_BYTES)]
        )
        for start in range(_PIECE_BYTES, len(body), _PIECE_BYTES):
            end = start + _PIECE_BYTES
            self._deliver([InvocationOutput(request_id, body=body[start:end], last=end >= len(body))])

    def _fail(self, request_id: str, error: Exception) -> None:
        if out_of_memory(error):
            reason = str(error) or "out of memory"
            self._send(request_id, AnswerHead(HTTPStatus.INSUFFICIENT_STORAGE, _phrase(reason), ()), b"")
            return
        output = Output().error(str(error) or type(error).__name__)
        self._send(request_id, _head(output), _only_part(output))


def out_of_memory(error: Exception) -> bool:
    """Whether an error of any library says that memory, perhaps a GPU's, is used up."""
    return type(error).__name__ in ("OutOfMemoryError", "MemoryError") or "CUDA out of memory" in str(error)


def _single_input(invocation: Invocation) -> Input:
    inputs = Input()
    inputs.request_id = invocation.properties.get("requestId", invocation.id)
    inputs.properties = dict(invocation.properties)
    for name, value in invocation.content:
        inputs.content.add(name, value)
    return inputs


def _batch_input(batch: Sequence[Invocation]) -> Input:
    inputs = Input()
    inputs.properties["batch_size"] = str(len(batch))
    for index, invocation in enumerate(batch):
        for name, text in invocation.properties.items():
            inputs.properties[f"batch_{index:03d}.{name}"] = text
        for name, value in invocation.content:
            inputs.content.add(f"batch_{index:03d}.{name}", value)
    return inputs


def _finalize(output: Output | None) -> None:
    """Call what the handler wants called after its answer."""
    try:
        if output is not None:
            output.execute_finalize()
    except Exception:  # the answer has been sent
        logger.exception("the handler's finalizer failed")


def _batch_answers(batch: Sequence[Invocation], output: Any) -> list[tuple[str, AnswerHead, bytes]]:
    """Return (id, head, body) of each request. Raises `CannotAnswer`: a body is missing, or the output is an error."""
    if output is None:
        head = AnswerHead(204, "No Content", ())
        return [(invocation.id, head, b"") for invocation in batch]
    if not isinstance(output, Output) or output.stream_content is not None:
        raise CannotAnswer("the handler must return an Output without a stream for a batch")
    if output.code >= 300:
        raise CannotAnswer(f"the handler returned {output.code} {output.message}: {_shown(output)}")
    parts = dict(_parts_by_index(output))
    if sorted(parts) != list(range(len(batch))) or len(output.content) != len(batch):
        raise CannotAnswer(f"the handler returned {len(output.content)} parts for a batch of {len(batch)}")
    head = _head(output)
    return [(one.id, head, parts[index]) for index, one in enumerate(batch)]


def _parts_by_index(output: Output) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the request, body): by keys such as `batch_003.data`, in order where no key has a number."""
    for place, (key, value) in enumerate(output.content):
        number = key.partition(".")[0].removeprefix("batch_")
        yield int(number) if key.startswith("batch_") and number.isdecimal() else place, value


def _only_part(output: Output) -> bytes:
    content = output.content
    if content.is_empty():
        return b""
    body: bytes = content.get("data") if content.contains("data") else content.value_at(0)
    return body


def _formatted(output: Output, content: Iterable[Any]) -> Generator[bytes, None, None]:
    write = output.stream_formatter
    for item in content:
        piece = item if write is None else write(item)
        if isinstance(piece, str):
            piece = piece.encode()
        if piece:
            yield bytes(piece)


def _head(output: Output) -> AnswerHead:
    """Raises `CannotAnswer`: status or headers cannot be sent by HTTP."""
    wrong = [name for name in output.properties if not _HEADER_NAME.fullmatch(str(name))]
    if wrong or not isinstance(output.code, int) or not 200 <= output.code <= 599:
        what = f"the header name {wrong[0]!r}" if wrong else f"the status {output.code!r}"
        raise CannotAnswer(f"the handler returned {what}, which cannot be sent")
    headers = tuple((_phrase(name), _phrase(value)) for name, value in output.properties.items())
    return AnswerHead(output.code, _phrase(output.message), headers)


def _phrase(text: object) -> str:
    """Return a text that may stand in the head of an HTTP answer: one line, Latin-1."""
    line = " ".join(str(text).split())[:4096]
    return "".join(c if c.isprintable() else " " for c in line).encode("latin-1", "replace").decode("latin-1")


def _shown(output: Output) -> str:
    return _only_part(output)[:500].decode(errors="replace")
