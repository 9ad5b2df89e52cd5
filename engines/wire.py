"""The messages between web processes, supervisor and engine: msgpack over ZeroMQ on a UNIX socket, never pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import msgspec

from engines.core import AbortReason, EngineStats, Request, RequestOutput, SchedulerReply, SettingValue
from engines.invocations import Invocation, InvocationOutput

MAX_MESSAGE_BYTES = 1040 * 1024 * 1024
"""Maximum size of a message to an engine, and between its processes: the largest `max_request_size` and 16 MiB for
headers."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """To the engine: run these requests, which belong to one HTTP request. Created by `of`, read by `whole`."""

    requests: tuple[Request, ...]
    """Requests without token ids if an earlier one, `same_prompt_as`, has the same prompt."""

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        """Return the message for these requests, in their order."""
        ids = {request.id for request in requests}
        return cls(
            tuple(
                replace(request, prompt_token_ids=()) if request.same_prompt_as in ids else request
                for request in requests
            )
        )

    def whole(self) -> tuple[Request, ...]:
        """Return the requests with their token ids. Requests with the same prompt share them."""
        prompts = {request.id: request.prompt_token_ids for request in self.requests}
        return tuple(
            replace(request, prompt_token_ids=prompts[request.same_prompt_as])
            if request.same_prompt_as in prompts
            else request
            for request in self.requests
        )


class Invoke(msgspec.Struct, frozen=True, tag=True):
    """To the engine: run the user's handler for this call."""

    invocation: Invocation


class Abort(msgspec.Struct, frozen=True, tag=True):
    """To the engine: abort this request, and send no further output."""

    request_id: str
    reason: AbortReason


class GetStats(msgspec.Struct, frozen=True, tag=True):
    """To the engine: reply with `EngineStats`."""

    token: int


class ConfigureScheduler(msgspec.Struct, frozen=True, tag=True):
    """To the engine: change these settings between two steps, all or none, and reply with a `SchedulerReply`."""

    token: int
    changes: dict[str, SettingValue]
    """New values, by field of `SchedulerSettings`; may be empty."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To the engine: refuse new requests, finish the running ones, and stop after at most `seconds`."""

    seconds: float


ToEngine = Submit | Invoke | Abort | GetStats | ConfigureScheduler | Drain


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """To a web process: outputs of its requests from one or more steps, in order for each request."""

    outputs: list[RequestOutput]


class InvocationOutputs(msgspec.Struct, frozen=True, tag=True):
    """To a web process: pieces of a handler's answers, in order for each answer."""

    outputs: list[InvocationOutput]


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Reply to `GetStats` or `ConfigureScheduler`, with the same token."""

    token: int
    content: EngineStats | SchedulerReply


ToClient = Outputs | InvocationOutputs | Reply

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
"""Decoder that raises `msgspec.DecodeError` or `msgspec.ValidationError` on anything but a known message."""
decode_to_client = msgspec.msgpack.Decoder(ToClient).decode
"""Decoder that raises the same errors as `decode_to_engine`."""
