"""Helpers for asynchronous handlers: complete responses, and chunks of streams."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from .outputs import Output, Record


def create_non_stream_output(
    data: str | dict[str, Any],
    properties: Mapping[str, str] | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Output:
    """Return a complete response.

    properties: headers; error: replaces the data if there is a code or no data; code: the HTTP status.
    """
    return _output(data, "application/json", error, code, properties or {})


def create_stream_chunk_output(
    data: str | dict[str, Any], last_chunk: bool, error: str | None = None, code: int | None = None
) -> Output:
    """Return one record of a stream. `last_chunk` is ignored: the stream ends when the handler's generator ends."""
    return _output(data, "application/jsonlines", error, code, {})


async def handle_streaming_response(
    response: AsyncIterator[Any],
    stream_output_formatter: Callable[..., Any],
    accumulate_chunks: bool = False,
    **kwargs: Any,
) -> AsyncIterator[Output]:
    """Yield the formatted chunks of a stream, up to the one that the formatter marks as the last.

    The formatter returns (text, is_last). With `accumulate_chunks` it also takes `history`, and returns the new history
    as a third value. If the formatter fails, the last record is an error.
    """
    history: list[Any] = []
    async for chunk in response:
        try:
            if accumulate_chunks:
                data, last, history = stream_output_formatter(chunk, history=history, **kwargs)
            else:
                data, last = stream_output_formatter(chunk, **kwargs)
        except Exception as error:
            logging.exception("stream_output_formatter failed")
            yield create_stream_chunk_output("", True, error=str(error), code=424)
            return
        yield create_stream_chunk_output(data, last)
        if last:
            return


def _output(
    data: str | dict[str, Any],
    content_type: str,
    error: str | None,
    code: int | None,
    properties: Mapping[str, str],
) -> Output:
    output = Output(code or 200).add_property("Content-Type", content_type)
    for name, value in properties.items():
        output.add_property(name, value)
    return output.add(Record.of(data, error, code) + b"\n")
