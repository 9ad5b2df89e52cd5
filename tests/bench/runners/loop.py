"""Shared code of the runners: the closed loop of users, and the protocol between runner and benchmark.

Runners run in the environments of the peers, so this module uses the standard library only. A runner is started as
`python RUNNER.py READ_FD WRITE_FD SETTINGS`. It writes `{"ready": VERSIONS}`, then responds to each line
`{"requests": [{"index", "prompt", "output_tokens"}, ...], "num_users": n}` with `{"outcomes": [...]}`. Outcomes have
the fields of `container.measure.bench.load.RequestOutcome`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass
class Request:
    """One request and its outcome. Times are in seconds since the start of the run."""

    index: int
    prompt: str
    wanted: int
    """Number of output tokens to generate."""
    user: int = 0
    scheduled: float = 0.0
    sent: float = 0.0
    prompt_tokens: int | None = None
    token_times: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    ended: float = 0.0


class ClosedLoop:
    """Users that each send their next request when the previous one is answered. User i % num_users sends request i."""

    def __init__(self, requests: Sequence[Request], num_users: int) -> None:
        self.requests = requests
        self._started = time.perf_counter()
        self._unsent = [list(reversed(requests[number::num_users])) for number in range(num_users)]
        for user, own in enumerate(self._unsent):
            for request in own:
                request.user = user
        self._free = list(range(num_users))

    def now(self) -> float:
        return time.perf_counter() - self._started

    def since_start(self, clock: float) -> float:
        """Convert a time of `time.perf_counter()` to this loop's clock."""
        return clock - self._started

    def due(self) -> list[Request]:
        """Return the requests that the users send now."""
        sent = []
        for user in self._free:
            if self._unsent[user]:
                request = self._unsent[user].pop()
                request.sent = self.now()
                sent.append(request)
        self._free.clear()
        return sent

    def answered(self, request: Request, ended: float) -> None:
        """Record that a response is complete. Its user is free from `ended` on."""
        request.ended = ended
        self._free.append(request.user)
        if self._unsent[request.user]:
            self._unsent[request.user][-1].scheduled = ended


class Engine(Protocol):
    """The engine that a runner wraps."""

    versions: dict[str, str]

    def run(self, loop: ClosedLoop) -> None:
        """Answer all requests of the loop."""


def outcome(request: Request) -> dict[str, Any]:
    fields = asdict(request)
    del fields["prompt"], fields["wanted"]
    return {**fields, "output_tokens": len(request.token_ids), "error": ""}


def serve(make_engine: Callable[..., Engine]) -> None:
    """Create the engine from the settings on the command line, and serve runs until the benchmark closes the pipe."""
    read_fd, write_fd, settings = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    engine = make_engine(**settings)
    with os.fdopen(read_fd) as runs, os.fdopen(write_fd, "w", buffering=1) as responses:
        responses.write(json.dumps({"ready": engine.versions}) + "\n")
        for line in runs:
            run = json.loads(line)
            requests = [Request(one["index"], one["prompt"], one["output_tokens"]) for one in run["requests"]]
            engine.run(ClosedLoop(requests, run["num_users"]))
            responses.write(json.dumps({"outcomes": [outcome(request) for request in requests]}) + "\n")
