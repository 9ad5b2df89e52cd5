"""The dialects of `lmi bench`: encode requests and parse response streams of each HTTP API.

All streams consist of lines, so parsing is a stateless function of a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from container.measure.bench.workload import BenchRequest

_OUR_MODEL = "lmi"
_LISTING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Record:
    """The content of one line of a stream."""

    num_pieces: int = 0
    """Number of tokens. If the server sends only text: 1 for a non-empty piece of text."""
    token_ids: tuple[int, ...] = ()
    """Token ids, if the dialect has them."""
    output_tokens: int | None = None
    """The server's count of generated tokens."""
    prompt_tokens: int | None = None
    """The server's count of prompt tokens."""
    ends: bool = False
    """Whether this is the last line of a complete response."""
    error: str = ""
    """Reason why the request failed; empty if it did not."""


class Dialect(Protocol):
    """One HTTP API."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """Path of the endpoint below the server's URL."""

    @property
    def pieces_are_tokens(self) -> bool:
        """Whether each record is a token. If not, only the server knows how many tokens a piece of text has."""

    def for_server(self, url: str) -> Dialect:
        """Return the dialect for the server at `url`, whose model may have a name."""

    def body(self, request: BenchRequest) -> bytes:
        """Encode a request as JSON: streamed, greedy, EOS ignored, exactly `request.output_tokens` tokens."""

    def read(self, line: bytes) -> Record | None:
        """Parse a line without its line end; None if the line has no content.

        Raises ValueError if the line is not of this dialect.
        """


class _LmiToken(msgspec.Struct):
    id: int | list[int]


class _LmiDetails(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None


class _LmiRecord(msgspec.Struct):
    """The fields of a record that are read. Other fields are skipped without creating objects."""

    token: _LmiToken | None = None
    generated_text: str | None = None
    details: _LmiDetails | None = None
    error: Any = None


class LmiDialect:
    """`POST /invocations` with JSON lines: a record for each token, the last one with the whole text."""

    name = "lmi"
    path = "/invocations"
    pieces_are_tokens = True

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_LmiRecord)

    def for_server(self, url: str) -> Dialect:
        return self

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
        details = record.details or _LmiDetails()
        if details.finish_reason == "error":
            return Record(error="the server ended the response with finish_reason 'error'")
        ids = _ids(record.token)
        return Record(
            num_pieces=len(ids),
            token_ids=ids,
            output_tokens=details.generated_tokens,
            prompt_tokens=details.input_length,
            ends=record.generated_text is not None,
        )


def _ids(token: _LmiToken | None) -> tuple[int, ...]:
    """Return the token ids. LMI up to 0.27 wrote ids as arrays; -1 marks an end without a token."""
    if token is None or token.id == -1:
        return ()
    return (token.id,) if isinstance(token.id, int) else tuple(token.id)


class _OpenAiChoice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None


class _OpenAiUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _OpenAiChunk(msgspec.Struct):
    choices: list[_OpenAiChoice] = []
    usage: _OpenAiUsage | None = None
    error: Any = None


class _OpenAiModel(msgspec.Struct):
    id: str


class _OpenAiModels(msgspec.Struct):
    data: list[_OpenAiModel]


class OpenAiDialect:
    """`POST /v1/completions` with server-sent events: pieces of text, a chunk with the token counts, [DONE].

    This server and vLLM also return token ids.
    """

    name = "openai"
    path = "/v1/completions"
    pieces_are_tokens = False

    def __init__(self, model: str = _OUR_MODEL) -> None:
        self._model = model
        self._decoder = msgspec.json.Decoder(_OpenAiChunk)

    def for_server(self, url: str) -> Dialect:
        return OpenAiDialect(_served_model(url))

    def body(self, request: BenchRequest) -> bytes:
        body = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
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
        usage = chunk.usage or _OpenAiUsage()
        return Record(
            num_pieces=1 if any(choice.text for choice in chunk.choices) else 0,
            token_ids=tuple(chain.from_iterable(choice.token_ids or () for choice in chunk.choices)),
            output_tokens=usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
        )


_DONE = Record(ends=True)


def _served_model(url: str) -> str:
    """Return the name to request: this server's own, unless the server lists only others, then the first of them."""
    try:
        timeout = _LISTING_SECONDS
        response = urllib3.request("GET", f"{url}/v1/models", timeout=timeout, retries=False, redirect=False)
        names = [model.id for model in msgspec.json.decode(response.data, type=_OpenAiModels).data]
    except (HTTPError, msgspec.DecodeError):
        return _OUR_MODEL  # the requests will tell what is wrong
    return _OUR_MODEL if _OUR_MODEL in names or not names else names[0]


DIALECTS: Mapping[str, Dialect] = {"lmi": LmiDialect(), "openai": OpenAiDialect()}


def error_text(error: Any) -> str:
    """Return the message of an `error` field, which is a text or an object with a `message`."""
    if isinstance(error, dict):
        error = error.get("message") or error
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
