"""The messages between dispatcher and handler workers; `engines/python/link.py` carries them."""

from __future__ import annotations

import msgspec

from engines.invocations import Invocation, InvocationOutput
from engines.python.messages import CannotLoad, Forget, Ready


class Add(msgspec.Struct, frozen=True, tag=True):
    """To a worker: a request of the next batch. One message each, so that the size of a batch bounds no message."""

    invocation: Invocation


class RunBatch(msgspec.Struct, frozen=True, tag=True):
    """To a worker: call the handler with the requests that were added. An asynchronous one is running them already."""


ToWorker = Add | RunBatch | Forget


class Answered(msgspec.Struct, frozen=True, tag=True):
    """From a worker: pieces of answers."""

    outputs: list[InvocationOutput]


class CallDone(msgspec.Struct, frozen=True, tag=True):
    """From a worker: a call is over. A request that has not had its last output by now has no answer."""

    request_ids: list[str]
    failed: bool = False
    """No request has an answer. Whichever was the cause, the others may succeed alone."""


FromWorker = Ready | CannotLoad | Answered | CallDone
