"""Peers without a server: a runner of `tests/bench/runners` in the peer's own environment, asked through two pipes."""

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
    """A peer that is called in its own process, without HTTP."""

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
    asked: TextIO
    answers: TextIO
    log: BinaryIO
    start_up_seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.child.pid

    @classmethod
    def start(cls, peer: InProcess, log_path: Path) -> RunningProcess:
        """Raises: Broken."""
        (asked_read, asked_write), (answers_read, answers_write) = os.pipe(), os.pipe()
        theirs = (asked_read, answers_write)
        command = [str(peer.python), str(RUNNERS / peer.runner), *map(str, theirs), json.dumps(peer.settings)]
        started = time.monotonic()
        log = log_path.open("ab", buffering=0)
        child = Child.start(peer.name, command, peer.environ, pass_fds=theirs, log=log)
        for descriptor in theirs:
            os.close(descriptor)
        running = cls(
            peer.name, child, os.fdopen(asked_write, "w", buffering=1), os.fdopen(answers_read), log
        )
        try:
            running.versions = running._answer()["ready"]
        except BaseException:
            running.end()
            raise
        running.start_up_seconds = time.monotonic() - started
        return running

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        wanted = [
            {"index": one.index, "prompt": one.prompt, "output_tokens": one.output_tokens} for one in requests
        ]
        try:
            self.asked.write(json.dumps({"requests": wanted, "num_users": num_users}) + "\n")
        except BrokenPipeError as error:
            raise self._broken() from error
        return load_run(self._answer()["outcomes"])

    def end(self) -> None:
        """The runner ends when nobody asks any more."""
        for stream in (self.asked, self.answers):
            stream.close()
        self.child.wait(_END_SECONDS)
        self.child.kill_all()
        self.child.last_lines()
        self.log.close()

    def _answer(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            raise self._broken()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _broken(self) -> Broken:
        self.child.wait(_END_SECONDS)
        self.child.last_lines()
        path = Path(self.log.name)
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return Broken("\n  ".join([f"{self.name}: its process ended. Its log, {path}, ends with", *tail]))


def load_run(outcomes: Sequence[Mapping[str, Any]]) -> LoadRun:
    """A runner's outcomes as a run of the load client; nothing in it was late, for there was no client."""
    found = tuple(
        RequestOutcome(
            **{**one, "token_times": tuple(one["token_times"]), "token_ids": tuple(one["token_ids"])}
        )
        for one in outcomes
    )
    return LoadRun(
        outcomes=tuple(sorted(found, key=lambda outcome: outcome.index)),
        wall_seconds=max(outcome.ended for outcome in found),
        client_cpu_seconds=0.0,
        worst_lag_seconds=0.0,
    )
