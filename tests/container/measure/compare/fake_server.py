"""Fake servers for comparisons: scripted HTTP servers in this process, with `/metrics`."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from container.measure.compare.configurations import Configuration
from container.measure.compare.server_process import ReadyServer, ServerFailed
from tests.container.measure.bench.scripted_server import Script, ScriptedServer, SeenRequest


@dataclass(slots=True)
class Behaviour:
    refuses: Callable[[dict[str, Any]], bool] = lambda body: False
    """Requests that get an error."""
    before_answer: Callable[[FakeServer, int], None] = lambda server, number: None
    """Called before each response with the number of the request, in order of arrival from 0."""
    kv: bool = True
    metrics_text: str | None = None
    """Content of `/metrics`, instead of made-up metrics."""
    input_length: int | None = None
    """The number of prompt tokens that the server reports."""
    exit_code: int = 0
    settling_looks: int = 0
    """Reads of `/metrics` after a request for which it still runs, and for which counters lag behind."""


class FakeServer:
    """A server from start to stop."""

    def __init__(self, config: Configuration, behaviour: Behaviour, journal: list[str]) -> None:
        self.start_up_seconds = 1.5
        self.behaviour = behaviour
        self.prompts: list[str] = []
        self.looked = threading.Event()
        """Set by each read of `/metrics`."""
        self.over = threading.Event()
        self._num_looks = 0
        self._name = config.name
        self._journal = journal
        self._server = ScriptedServer(self._answer, metrics=self._metrics)
        self._server.start()
        self.url = self._server.url
        journal.append(f"start {config.name}")

    @property
    def seen(self) -> list[SeenRequest]:
        return self._server.seen

    def peak_memory(self) -> int | None:
        return 1 << 20

    def stop(self) -> None:
        self._end("stop")
        if self.behaviour.exit_code:
            raise ServerFailed(f"{self._name}: the server exited with code {self.behaviour.exit_code}")

    def kill(self) -> None:
        self._end("kill")

    def _end(self, how: str) -> None:
        if self.over.is_set():
            return
        self.over.set()
        self._journal.append(f"{how} {self._name}")
        self._server.close()

    def _answer(self, number: int, body: dict[str, Any]) -> Script:
        prompt, behaviour = body["inputs"], self.behaviour
        self.prompts.append(prompt)
        self._num_looks = 0
        behaviour.before_answer(self, number)
        if behaviour.refuses(body):
            return Script(status=424, body=b'{"error": "no such thing", "code": 424}')
        count = body["parameters"]["max_new_tokens"]
        ids = tuple(zlib.crc32(f"{prompt}/{position}".encode()) % 1000 for position in range(count))
        return Script(prompt_tokens=behaviour.input_length, token_ids=ids)

    def _metrics(self) -> bytes:
        """Metrics: 4 steps of 3 sequences per request; 2 of 10 blocks are allocated and half full."""
        self.looked.set()
        self._num_looks += 1
        is_running = self._num_looks <= self.behaviour.settling_looks
        if self.behaviour.metrics_text is not None:
            return self.behaviour.metrics_text.encode()
        count = 4 * (len(self.prompts) // 2 if is_running else len(self.prompts))
        metrics = {
            "requests_running": int(is_running),
            "batch_size_count": count,
            "batch_size_sum": 3 * count,
            "preemptions_total": len(self.prompts),
        }
        if self.behaviour.kv:
            blocks = {"kv_blocks_total": 10, "kv_blocks_free": 8, "kv_blocks_cached": 0}
            metrics |= {**blocks, "kv_slots_total": 160, "kv_slots_unfilled": 16}
        return "".join(f"lmi_{name} {value}\n" for name, value in metrics.items()).encode()


@dataclass(slots=True)
class FakeServers:
    """Starts fake servers, and keeps them and a journal of starts and stops."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    lives: dict[str, list[FakeServer]] = field(default_factory=dict)
    variables: list[dict[str, str]] = field(default_factory=list)
    """Environment variables of each start."""

    def __call__(self, config: Configuration, log: Path, variables: Mapping[str, str]) -> ReadyServer:
        log.write_text("")
        self.variables.append(dict(variables))
        life = FakeServer(config, self.behaviours.get(config.name, Behaviour()), self.journal)
        self.lives.setdefault(config.name, []).append(life)
        return life
