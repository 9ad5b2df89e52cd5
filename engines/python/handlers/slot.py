"""One place for a worker: its process, and what that does now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgspec

from engines.invocations import Invocation
from engines.python.handlers.messages import Add, FromWorker, RunBatch
from engines.python.messages import Forget
from engines.python.worker_process import WorkerProcess

_MODULE = "engines.python.handlers.worker"


class HandlerProcess(WorkerProcess[FromWorker]):
    """A process that runs the handler, one batch at a time."""

    def __init__(self, python: str, config: Path, number: int) -> None:
        """python: the interpreter; config: `HandlerEngineConfig` as JSON; number: of the worker, from 0."""
        command = [python or sys.executable, "-m", _MODULE, "--config", str(config), "--number", str(number)]
        super().__init__(f"worker {number}", command, msgspec.msgpack.Decoder(FromWorker))

    def run(self, batch: Sequence[Invocation]) -> None:
        """Start a call, which ends with a `CallDone`."""
        for invocation in batch:
            self.send(Add(invocation))
        self.send(RunBatch())

    def forget(self, request_id: str) -> None:
        """Ask for no further output of this request."""
        self.send(Forget(request_id))


@dataclass(slots=True)
class RunningInvocation:
    """A request of a call."""

    invocation: Invocation
    answering: bool = False
    """Whether a piece of its answer has been passed on: then it cannot run again."""


class Activity(Enum):
    LOADING = "loading"
    IDLE = "idle"
    CALLING = "calling"


@dataclass(slots=True)
class Slot:
    """Owned by the dispatcher."""

    process: HandlerProcess
    number: int
    since: float
    """When its activity began."""
    activity: Activity = Activity.LOADING
    act_at: float | None = None
    """When the worker is stuck: it has not returned from its call, or not loaded the handler."""
    running: dict[str, RunningInvocation] = field(default_factory=dict)
    """The requests of its call that are still wanted, by id."""

    def become(self, activity: Activity, now: float, act_at: float | None = None) -> None:
        self.activity = activity
        self.since = now
        self.act_at = act_at
