"""Messages between the dispatcher and handler workers, sent over `engines/python/link.py`."""

from __future__ import annotations

import msgspec

from engines.invocations import Invocation, InvocationOutput
from engines.python.messages import CannotLoad, Forget, Ready


class Add(msgspec.Struct, frozen=True, tag=True):
    """To a worker: one request of the next batch. Message size therefore does not depend on the batch size."""

    invocation: Invocation


class RunBatch(msgspec.Struct, frozen=True, tag=True):
    """To a worker: call the handler with the added requests. An asynchronous handler is already running them."""


ToWorker = Add | RunBatch | Forget


class Answered(msgspec.Struct, frozen=True, tag=True):
    """From a worker: pieces of responses."""

    outputs: list[InvocationOutput]


class CallDone(msgspec.Struct, frozen=True, tag=True):
    """From a worker: a call is over. Its requests get no further output, even if the last one is missing."""

    request_ids: list[str]
    failed: bool = False
    """Whether the call with the whole batch failed. Each request may still succeed alone."""


FromWorker = Ready | CannotLoad | Answered | CallDone
