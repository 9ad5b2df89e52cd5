"""Messages between the dispatcher and the generating process, sent over `link.py`."""

from __future__ import annotations

import msgspec

from engines.core import Request, RequestOutput

DISPATCHER, GENERATOR = 0, 1
"""Indices of the two processes' heartbeats on the status board."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """To the generating process: run these requests as one batch. Sent only when no batch runs."""

    requests: list[Request]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """To the generating process: send no further output for this request."""

    request_id: str


ToGenerator = Run | Forget


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the generating process, once: the model is loaded and has run."""

    device: str
    load_seconds: dict[str, float]
    """Duration of the start in seconds, by part."""
    accepts_concurrent_calls: bool = False
    """Whether the process accepts concurrent calls, as with an asynchronous handler."""
    takes_batches: bool = True
    """Whether one call of a handler may contain several requests."""


class CannotLoad(msgspec.Struct, frozen=True, tag=True):
    """From the generating process, before it exits: why the model could not be loaded."""

    cause: str


class CallStarted(msgspec.Struct, frozen=True, tag=True):
    """From the generating process: a call of `generate` starts, and so does its time limit. A batch has one or more."""

    request_ids: list[str]


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """From the generating process: the outputs of one step of `generate`."""

    outputs: list[RequestOutput]


class BatchWaste(msgspec.Struct):
    """Wasted tokens of a batch. Counted by `Steps` and `BatchRunner` while the batch runs."""

    prompt_padding: int = 0
    """Tokens added to pad prompts to the length of the longest."""
    ended_row_tokens: int = 0
    """Tokens computed for rows that had ended while other rows continued."""


class BatchDone(msgspec.Struct, frozen=True, tag=True):
    """From the generating process: every request of the batch has had its last output, or was forgotten."""

    waste: BatchWaste


FromGenerator = Ready | CannotLoad | CallStarted | StepDone | BatchDone
