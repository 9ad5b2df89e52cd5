"""Peers without a server: a runner of `tests/bench/runners` in the peer's own environment, called through two pipes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.workload import BenchRequest
from container.run.processes import Child
from tests.bench.contender import Broken, Facts

RUNNERS = Path(__file__).parent / "runners"
_END_SECONDS = 5.0
_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class InProcess:
    """A peer that runs in a process of its own and is called without HTTP."""

    name: str
    facts: Facts
    python: Path
    runner: str
    """File name of the runner."""
    settings: Mapping[str, Any]
    """Keyword arguments of the runner's engine."""
    environ: Mapping[str, str]

    def start(self, log: Path) -> RunningProcess:
        return RunningProcess.start(self, log)


@dataclass(slots=True)
class RunningProcess:
    """A runner that has loaded its model."""

    name: str
    child: Child
    request_pipe: TextIO
    response_pipe: TextIO
    log: BinaryIO
    start_up_seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.child.pid

    @classmethod
    def start(cls, peer: InProcess, log_path: Path) -> RunningProcess:
        """Start the runner and wait until it has loaded its model. Raises: Broken."""
        (request_read, request_write), (response_read, response_write) = os.pipe(), os.pipe()
        child_ends = (request_read, response_write)
        command = [
            str(peer.python),
            str(RUNNERS / peer.runner),
            *map(str, child_ends),
            json.dumps(peer.settings),
        ]
        started = time.monotonic()
        log = log_path.open("ab", buffering=0)
        child = Child.start(peer.name, command, peer.environ, pass_fds=child_ends, log=log)
        for descriptor in child_ends:
            os.close(descriptor)
        running = cls(
            peer.name, child, os.fdopen(request_write, "w", buffering=1), os.fdopen(response_read), log
        )
        try:
            running.versions = running._read_response()["ready"]
        except BaseException:
            running.end()
            raise
        running.start_up_seconds = time.monotonic() - started
        return running

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        payload = [
            {"index": request.index, "prompt": request.prompt, "output_tokens": request.output_tokens}
            for request in requests
        ]
        try:
            self.request_pipe.write(json.dumps({"requests": payload, "num_users": num_users}) + "\n")
        except BrokenPipeError as error:
            raise self._broken_error() from error
        return load_run(self._read_response()["outcomes"])

    def end(self) -> None:
        """Close the pipes, which makes the runner exit, and kill what still runs."""
        for stream in (self.request_pipe, self.response_pipe):
            stream.close()
        self.child.wait(_END_SECONDS)
        self.child.kill_all()
        self.child.last_lines()
        self.log.close()

    def _read_response(self) -> dict[str, Any]:
        line = self.response_pipe.readline()
        if not line:
            raise self._broken_error()
        response: dict[str, Any] = json.loads(line)
        return response

    def _broken_error(self) -> Broken:
        self.child.wait(_END_SECONDS)
        self.child.last_lines()
        path = Path(self.log.name)
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return Broken("\n  ".join([f"{self.name}: its process exited. Its log {path} ends with", *tail]))


def load_run(outcomes: Sequence[Mapping[str, Any]]) -> LoadRun:
    """Convert a runner's outcomes to a run of the load client. Nothing in it is late, since there is no client."""
    parsed = tuple(
        RequestOutcome(
            **{**fields, "token_times": tuple(fields["token_times"]), "token_ids": tuple(fields["token_ids"])}
        )
        for fields in outcomes
    )
    return LoadRun(
        outcomes=tuple(sorted(parsed, key=lambda outcome: outcome.index)),
        wall_seconds=max(outcome.ended for outcome in parsed),
        client_cpu_seconds=0.0,
        worst_lag_seconds=0.0,
    )
