"""One place for a worker: its process, and the calls that it is busy with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from engines.config import HandlerSettings
from engines.invocations import Invocation
from engines.python.handlers.messages import Add, FromWorker, RunBatch
from engines.python.worker_process import WorkerProcess

_MODULE = "engines.python.handlers.worker"
MAX_CALLS = 256
"""Most calls at once in a worker with an asynchronous handler."""


class HandlerProcess(WorkerProcess[FromWorker]):
    """A process that runs the handler."""

    def __init__(self, settings: HandlerSettings, config: Path, number: int) -> None:
        """config: `HandlerEngineConfig` as JSON; number: of the worker, from 0."""
        super().__init__(
            f"worker {number}", worker_command(settings, config, number), msgspec.msgpack.Decoder(FromWorker)
        )

    def run(self, batch: Sequence[Invocation]) -> None:
        """Start a call; an asynchronous handler is called for each request. Ends with `CallDone`."""
        for invocation in batch:
            self.send(Add(invocation))
        self.send(RunBatch())


def worker_command(settings: HandlerSettings, config: Path, number: int) -> list[str]:
    """Return the command of a worker, which sees its own GPUs only. More workers than groups of GPUs share them."""
    groups = settings.worker_gpus
    sees = ["env", f"CUDA_VISIBLE_DEVICES={groups[number % len(groups)]}"] if groups else []
    return [*sees, settings.python or sys.executable, "-P", "-m", _MODULE, "--config", str(config)]


@dataclass(slots=True)
class RunningInvocation:
    """A request of a call."""

    invocation: Invocation
    answering: bool = False
    """Whether a piece of its answer has been passed on: then it cannot run again."""


@dataclass(slots=True)
class Slot:
    """Owned by the dispatcher."""

    process: HandlerProcess
    number: int
    loading: bool = True
    load_deadline: float | None = None
    """When a worker that loads the handler is stuck; None: the supervisor limits the time."""
    deaths: int = 0
    """Ends of its processes in a row, while they loaded or had nothing to do."""
    idle_since: float = 0.0
    """When its latest call ended."""
    takes_many: bool = False
    """Whether it can be called again before a call is over."""
    runs_alone: bool = False
    """Whether its call is one beside which no other may run."""
    calls: dict[str, float] = field(default_factory=dict)
    """Requests whose calls are not over, by id: when the worker is stuck with each."""
    running: dict[str, RunningInvocation] = field(default_factory=dict)
    """Those of them that are still wanted, by id."""

    @property
    def act_at(self) -> float | None:
        """When the worker is stuck: it has not ended a call, or not loaded the handler."""
        return self.load_deadline if self.loading else min(self.calls.values(), default=None)

    @property
    def idle(self) -> bool:
        return not self.loading and not self.calls

    @property
    def has_room(self) -> bool:
        """Whether it can be called now."""
        many = self.takes_many and not self.runs_alone and len(self.calls) < MAX_CALLS
        return not self.loading and (not self.calls or many)

    def load_again(self, deadline: float) -> None:
        """Note that the process is gone, and with it the calls; requests that ran are kept."""
        self.loading, self.load_deadline = True, deadline
        self.runs_alone, self.calls = False, {}
