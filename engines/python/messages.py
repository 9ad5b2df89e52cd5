"""The messages between dispatcher and generating process: msgpack, never pickle. No one else speaks them."""

from __future__ import annotations

import msgspec

from engines.core import Request, RequestOutput


class Run(msgspec.Struct, frozen=True, tag=True):
    """To the generating process: generate for these together. It is told only when no batch runs."""

    requests: list[Request]
    deadline: float
    """`time.monotonic()` at which what is not done is stopped; one clock for all processes of a host."""


class Forget(msgspec.Struct, frozen=True, tag=True):
    """To the generating process: no further output for this request is wanted."""

    request_id: str


ToGenerator = Run | Forget


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the generating process, once: the model is loaded and has computed."""

    device: str
    load_seconds: dict[str, float]
    """Where the time went, by part."""


class CannotLoad(msgspec.Struct, frozen=True, tag=True):
    """From the generating process, before it ends: why there is no model."""

    cause: str


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """From the generating process: what one step of `generate` gave."""

    outputs: list[RequestOutput]


class BatchDone(msgspec.Struct, frozen=True, tag=True):
    """From the generating process: each request of the batch has had its last output, or was forgotten."""

    prompt_padding: int
    """Tokens by which prompts were padded to the length of the longest."""
    ended_row_tokens: int
    """Tokens computed for rows that had ended, because others had not."""


FromGenerator = Ready | CannotLoad | StepDone | BatchDone
