"""A worker slot: the worker's process and its running calls."""

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
"""Maximum number of concurrent calls in a worker with an asynchronous handler."""


class HandlerProcess(WorkerProcess[FromWorker]):
    """A process that runs the handler."""

    def __init__(self, settings: HandlerSettings, config: Path, number: int) -> None:
        """config: file with the `HandlerEngineConfig` as JSON; number: the worker's number, from 0."""
        super().__init__(
            f"worker {number}", worker_command(settings, config, number), msgspec.msgpack.Decoder(FromWorker)
        )

    def run(self, batch: Sequence[Invocation]) -> None:
        """Start a call. An asynchronous handler is called for each request. Each call ends with `CallDone`."""
        for invocation in batch:
            self.send(Add(invocation))
        self.send(RunBatch())


def worker_command(settings: HandlerSettings, config: Path, number: int) -> list[str]:
    """Return the command of a worker, which sees only its own group of GPUs. Surplus workers share groups."""
    groups = settings.worker_gpus
    sees = ["env", f"CUDA_VISIBLE_DEVICES={groups[number % len(groups)]}"] if groups else []
    return [*sees, settings.python or sys.executable, "-P", "-m", _MODULE, "--config", str(config)]


@dataclass(slots=True)
class RunningInvocation:
    """A request in a running call."""

    invocation: Invocation
    answering: bool = False
    """Whether a piece of the response has been sent, so that the request cannot be retried."""


@dataclass(slots=True)
class Slot:
    """A worker's state. Owned by the dispatcher."""

    process: HandlerProcess
    number: int
    loading: bool = True
    load_deadline: float | None = None
    """Time at which a loading worker counts as stuck; None if the supervisor enforces the limit."""
    crashes: int = 0
    """Number of crashes while loading or idle since the latest call."""
    idle_since: float = 0.0
    """Time at which the latest call ended or the handler was loaded."""
    accepts_concurrent_calls: bool = False
    """Whether the worker accepts concurrent calls."""
    runs_alone: bool = False
    """Whether no other call may run next to the current one."""
    calls: dict[str, float] = field(default_factory=dict)
    """Running calls by request id, with the time at which the worker counts as stuck in the call."""
    running: dict[str, RunningInvocation] = field(default_factory=dict)
    """Requests of the running calls that are still wanted, by id."""

    @property
    def stuck_at(self) -> float | None:
        """Time at which the worker counts as stuck, in a call or while it loads the handler."""
        return self.load_deadline if self.loading else min(self.calls.values(), default=None)

    @property
    def idle(self) -> bool:
        return not self.loading and not self.calls

    @property
    def room(self) -> int:
        """Number of calls that the worker can take now."""
        if self.loading or self.runs_alone:
            return 0
        return max(0, (MAX_CALLS if self.accepts_concurrent_calls else 1) - len(self.calls))

    def postpone(self, moment: float) -> None:
        """Let the worker count as stuck no earlier than at `moment`."""
        if self.load_deadline is not None:
            self.load_deadline = max(self.load_deadline, moment)
        self.calls = {name: max(deadline, moment) for name, deadline in self.calls.items()}

    def reset(self, deadline: float) -> None:
        """Reset the slot after its process is gone. Its calls are cleared; `running` is kept."""
        self.loading, self.load_deadline = True, deadline
        self.runs_alone, self.calls = False, {}
