"""Calls of a handler, one at a time: convert requests to an `Input`, and the handler's `Output` to responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from djl_python import Input, Output
from djl_python.inputs import Properties

from engines.invocations import Invocation, InvocationOutput
from engines.python.handlers import answers
from engines.python.handlers.messages import Add, Answered, CallDone, RunBatch, ToWorker
from engines.python.link import Link
from engines.python.worker_main import receive_forgotten_ids

logger = logging.getLogger(__name__)

_REPEATED = ("model_dir", "device_id", "tensor_parallel_degree")
"""Properties of the loading call that each later call has too, as in LMI."""
_RESERVED = ("batch_size", *_REPEATED)
"""Properties that a client cannot set."""


class Calls:
    """Calls one handler, one batch at a time."""

    def __init__(
        self, handler: Callable[[Input], Any], link: Link[ToWorker], properties: Mapping[str, str]
    ) -> None:
        """properties: of the call in which the handler loads its model."""
        self._handler = handler
        self._properties = properties
        self._link = link
        self._unwanted: set[str] = set()
        """Ids of requests in this batch that are no longer wanted."""

    def load(self) -> None:
        """Make the call in which the handler loads its model. Raises: any error of the handler; `CannotAnswer`."""
        answers.check_load(self._handler(load_input(self._properties)))

    def serve(self) -> None:
        """Run calls until the dispatcher exits. Raises `LinkClosed`."""
        batch: list[Invocation] = []
        while True:
            message = self._link.receive(None)
            if isinstance(message, Add):
                batch.append(message.invocation)
            elif isinstance(message, RunBatch):
                answered = self.run(batch)
                self._link.send(CallDone([invocation.id for invocation in batch], failed=not answered))
                batch = []

    def run(self, batch: Sequence[Invocation]) -> bool:
        """Answer a batch. Return False if the call with the whole batch failed and each request has to run alone."""
        self._unwanted.clear()
        if len(batch) == 1:
            self._unwanted.update(receive_forgotten_ids(self._link))
            if batch[0].id not in self._unwanted:
                self._run_alone(batch[0])
            return True
        output = None
        try:
            output = self._handler(batch_input(batch, self._properties))
            pieces = answers.batch_responses(batch, output)
        except Exception:  # one request's error must not fail the others
            logger.exception("a call with %d requests failed; each runs again alone", len(batch))
            return False
        else:
            self._send(pieces)
            return True
        finally:
            answers.finalize(output)

    def _run_alone(self, invocation: Invocation) -> None:
        output = None
        try:
            output = self._handler(single_input(invocation, self._properties))
            if output is not None and not isinstance(output, Output):
                raise answers.CannotAnswer(
                    f"the handler returned {type(output).__name__}; it must return an Output or None"
                )
            if output is not None and output.stream_content is not None:
                self._stream(invocation.id, output)
            else:
                self._send(answers.response_pieces(invocation.id, output))
        except Exception as error:  # an error of the user's code must only fail this call
            logger.exception("%s: the handler failed", invocation.id)
            self._deliver(answers.failure(invocation.id, error))
        finally:
            answers.finalize(output)

    def _stream(self, request_id: str, output: Output) -> None:
        """Send a stream piece by piece. An error before the first piece is raised; a later error ends the stream."""
        pieces = answers.stream_of(output)
        first = next(pieces, b"")
        self._deliver(InvocationOutput(request_id, answers.head(output), first))
        try:
            while request_id not in self._unwanted and (piece := next(pieces, None)) is not None:
                self._deliver(InvocationOutput(request_id, body=piece))
        except Exception as error:
            self._deliver(answers.stream_failure(request_id, error))
            return
        finally:
            pieces.close()
        self._deliver(InvocationOutput(request_id, last=True))

    def _send(self, pieces: Iterable[InvocationOutput]) -> None:
        for piece in pieces:
            self._deliver(piece)

    def _deliver(self, piece: InvocationOutput) -> None:
        self._link.send(Answered([piece]))
        self._unwanted.update(receive_forgotten_ids(self._link))


def load_input(properties: Mapping[str, str]) -> Input:
    """Return the input without content with which a handler loads its model."""
    inputs = Input()
    inputs.properties = Properties(properties)
    return inputs


def single_input(invocation: Invocation, loaded: Mapping[str, str]) -> Input:
    """Return the input of one request. loaded: properties of the loading call."""
    inputs = load_input({**_of_client(invocation), **_repeated(loaded)})
    inputs.request_id = invocation.properties.get("requestId", invocation.id)
    for name, value in invocation.content:
        inputs.content.add(name, bytearray(value))
    return inputs


def batch_input(batch: Sequence[Invocation], loaded: Mapping[str, str]) -> Input:
    """Return the input of several requests. loaded: properties of the loading call."""
    inputs = load_input({"batch_size": str(len(batch)), **_repeated(loaded)})
    for index, invocation in enumerate(batch):
        for name, text in _of_client(invocation).items():
            inputs.properties[f"batch_{index:03d}.{name}"] = text
        for name, value in invocation.content:
            inputs.content.add(f"batch_{index:03d}.{name}", bytearray(value))
    return inputs


def _of_client(invocation: Invocation) -> dict[str, str]:
    return {name: text for name, text in invocation.properties.items() if name.lower() not in _RESERVED}


def _repeated(loaded: Mapping[str, str]) -> dict[str, str]:
    return {name: loaded[name] for name in _REPEATED if name in loaded}
