"""How a request is written and its stream is read, in each way of speaking that servers have.

Both are streams of lines, so reading is one function from a line to what it says, without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from container.measure.bench.workload import BenchRequest


@dataclass(frozen=True, slots=True)
class Record:
    """What one line of a stream says."""

    num_pieces: int = 0
    """Tokens that came with it; where a server sends text only, 1 for a piece of text that is not empty."""
    token_ids: tuple[int, ...] = ()
    """Their ids, where the dialect has them."""
    output_tokens: int | None = None
    """The server's own count of all tokens that it generated for the request."""
    prompt_tokens: int | None = None
    """The server's own count of the prompt's tokens."""
    ends: bool = False
    """The answer is complete with it."""
    error: str = ""
    """The request failed, and why."""


class Dialect(Protocol):
    """One way of speaking."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """Where requests are posted, below the server's URL."""

    @property
    def pieces_are_tokens(self) -> bool:
        """A record for each token; else only the server knows how many tokens its pieces of text are."""

    def body(self, request: BenchRequest) -> bytes:
        """JSON: streamed, greedy, EOS ignored, exactly `request.output_tokens` tokens."""

    def read(self, line: bytes) -> Record | None:
        """What a line without its end says; None when it says nothing.

        Raises: ValueError when it is not of this dialect.
        """


class _LmiToken(msgspec.Struct):
    id: int | list[int]


class _LmiDetails(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None


class _LmiRecord(msgspec.Struct):
    """What of a record is read; everything else in it is skipped without being made an object."""

    token: _LmiToken | None = None
    generated_text: str | None = None
    details: _LmiDetails | None = None
    error: Any = None


class LmiDialect:
    """`POST /invocations`, answered by JSON lines: a record for each token, the last with the whole text."""

    name = "lmi"
    path = "/invocations"
    pieces_are_tokens = True

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_LmiRecord)

    def body(self, request: BenchRequest) -> bytes:
        parameters = {
            "max_new_tokens": request.output_tokens,
            "do_sample": False,
            "temperature": 0,
            "ignore_eos_token": True,
            "details": True,
        }
        return msgspec.json.encode({"inputs": request.prompt, "parameters": parameters, "stream": True})

    def read(self, line: bytes) -> Record | None:
        if not line.strip():
            return None
        record = self._decoder.decode(line)
        if record.error is not None:
            return Record(error=error_text(record.error))
        details = record.details or _NO_DETAILS
        if details.finish_reason == "error":
            return Record(error="the server ended the answer with finish_reason 'error'")
        ids = _ids(record.token)
        return Record(
            num_pieces=len(ids),
            token_ids=ids,
            output_tokens=details.generated_tokens,
            prompt_tokens=details.input_length,
            ends=record.generated_text is not None,
        )


_NO_DETAILS = _LmiDetails()


def _ids(token: _LmiToken | None) -> tuple[int, ...]:
    """LMI wrote ids as arrays up to 0.27; -1 stands where an end came without a token."""
    if token is None or token.id == -1:
        return ()
    return (token.id,) if isinstance(token.id, int) else tuple(token.id)


class _OpenAiChoice(msgspec.Struct):
    text: str | None = None


class _OpenAiUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _OpenAiChunk(msgspec.Struct):
    choices: list[_OpenAiChoice] = []
    usage: _OpenAiUsage | None = None
    error: Any = None


class OpenAiDialect:
    """`POST /v1/completions`, answered by server-sent events: pieces of text, a last chunk with the counts, [DONE]."""

    name = "openai"
    path = "/v1/completions"
    pieces_are_tokens = False

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_OpenAiChunk)

    def body(self, request: BenchRequest) -> bytes:
        body = {
            "model": "lmi",
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode(body)

    def read(self, line: bytes) -> Record | None:
        if not line.startswith(b"data:"):
            if line.startswith(b"{"):
                raise ValueError("a bare JSON object where server-sent events were expected")
            return None  # comments, event names, the empty line after each event
        data = line[5:].strip()
        if data == b"[DONE]":
            return _DONE
        chunk = self._decoder.decode(data)
        if chunk.error is not None:
            return Record(error=error_text(chunk.error))
        usage = chunk.usage or _NO_USAGE
        return Record(
            num_pieces=1 if any(choice.text for choice in chunk.choices) else 0,
            output_tokens=usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
        )


_DONE = Record(ends=True)
_NO_USAGE = _OpenAiUsage()

DIALECTS: Mapping[str, Dialect] = {"lmi": LmiDialect(), "openai": OpenAiDialect()}


def error_text(error: Any) -> str:
    """The words of an `error` field: a text, or an object with a `message`."""
    if isinstance(error, dict):
        error = error.get("message") or error
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
