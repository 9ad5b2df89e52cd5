"""The messages between web processes, supervisor and engine: msgpack over ZeroMQ on a UNIX socket, never pickle."""

from __future__ import annotations

import msgspec

from engines.core import AbortReason, EngineStats, Request, RequestOutput, SchedulerSettings


class Submit(msgspec.Struct, frozen=True, tag=True):
    """To the engine: continue this prompt."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """To the engine: forget this request; no further output is wanted."""

    request_id: str
    reason: AbortReason


class GetStats(msgspec.Struct, frozen=True, tag=True):
    """To the engine: answer with `Stats`."""

    token: int


class ConfigureScheduler(msgspec.Struct, frozen=True, tag=True):
    """To the engine: change these limits at the next step boundary, all or none, and answer with `SchedulerState`.

    `changes` by field of `SchedulerSettings`; empty only asks.
    """

    token: int
    changes: dict[str, int | float | bool | str | None]


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To the engine: take no new request, finish the running ones, end after `seconds` at the latest."""

    seconds: float


ToEngine = Submit | Abort | GetStats | ConfigureScheduler | Drain


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """To a web process: what its requests got, in one step or in several; each one's in order."""

    outputs: list[RequestOutput]


class Stats(msgspec.Struct, frozen=True, tag=True):
    """To whoever asked with `GetStats`."""

    token: int
    stats: EngineStats


class SchedulerState(msgspec.Struct, frozen=True, tag=True):
    """To whoever sent `ConfigureScheduler`: the settings in force, changed or not."""

    token: int
    settings: SchedulerSettings | None
    """None: this engine has no such scheduler."""
    refused: dict[str, str]
    """By field: why its value is not accepted. With any, nothing was changed."""


ToClient = Outputs | Stats | SchedulerState

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_client = msgspec.msgpack.Decoder(ToClient)


def encode(message: ToEngine | ToClient) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises `msgspec.DecodeError` or `msgspec.ValidationError` on anything but a known message."""
    message: ToEngine = _to_engine.decode(data)
    return message


def decode_to_client(data: bytes) -> ToClient:
    """Raises `msgspec.DecodeError` or `msgspec.ValidationError` on anything but a known message."""
    message: ToClient = _to_client.decode(data)
    return message
