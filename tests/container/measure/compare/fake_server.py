"""A configuration that is no engine: a server in this process that answers `/invocations` and keeps `/metrics`."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from container.measure.compare.configurations import Configuration
from container.measure.compare.server_process import ReadyServer, ServerFailed

Token = Callable[[str, int], int]
"""(prompt, position) -> token id."""


def plain_token(prompt: str, position: int) -> int:
    return zlib.crc32(f"{prompt}/{position}".encode()) % 1000


@dataclass(slots=True)
class Behaviour:
    """How a configuration behaves."""

    token: Token = plain_token
    refuses: Callable[[dict[str, Any]], bool] = lambda body: False
    """Requests that get an error."""
    before_answer: Callable[[FakeServer, int], None] = lambda config, number: None
    """Is called before each answer; requests count from 0 in the order of their arrival."""
    kv: bool = True
    metrics_text: str | None = None
    """Stands at `/metrics` in place of everything else."""
    input_length: int | None = None
    """How many prompt tokens it says it counted."""
    exit_code: int = 0


class FakeServer:
    """One life of one config."""

    def __init__(self, config: Configuration, behaviour: Behaviour, journal: list[str]) -> None:
        self.start_up_seconds = 1.5
        self.behaviour = behaviour
        self.prompts: list[str] = []
        self.lock = threading.Lock()
        self.num_steps = 0
        self.num_sequences = 0
        self.looked = threading.Event()
        """Set by each look at `/metrics`."""
        self.over = threading.Event()
        self._config = config
        self._journal = journal
        self._server = _Listener(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        journal.append(f"start {config.name}")

    def peak_memory(self) -> int | None:
        return 1 << 20

    def stop(self) -> None:
        self._end("stop")
        if self.behaviour.exit_code:
            raise ServerFailed(
                f"{self._config.name}: its server ended with exit code {self.behaviour.exit_code}"
            )

    def kill(self) -> None:
        self._end("kill")

    def _end(self, how: str) -> None:
        if self.over.is_set():
            return
        self.over.set()
        self._journal.append(f"{how} {self._config.name}")
        self._server.shutdown()
        self._server.server_close()

    def metrics(self) -> str:
        """Each request was in 4 steps of 3 sequences, and 2 of 10 blocks are held, half full."""
        if self.behaviour.metrics_text is not None:
            return self.behaviour.metrics_text
        lines = [
            "# TYPE lmi_batch_size histogram",
            f'lmi_batch_size_bucket{{le="+Inf"}} {self.num_steps}',
            f"lmi_batch_size_count {self.num_steps}",
            f"lmi_batch_size_sum {self.num_sequences}",
        ]
        if self.behaviour.kv:
            gauges = {
                "blocks_total": 10,
                "blocks_free": 8,
                "blocks_cached": 0,
                "slots_total": 160,
                "slots_unfilled": 16,
            }
            for name, value in gauges.items():
                lines += [f"# TYPE lmi_kv_{name} gauge", f"lmi_kv_{name} {value}"]
        return "\n".join(lines) + "\n"


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, config: FakeServer) -> None:
        self.config = config
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_GET(self) -> None:
        self._answer(200, self.server.config.metrics().encode())
        self.server.config.looked.set()

    def do_POST(self) -> None:
        config = self.server.config
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with config.lock:
            number = len(config.prompts)
            config.prompts.append(body["inputs"])
            config.num_steps += 4
            config.num_sequences += 12
        config.behaviour.before_answer(config, number)
        if config.behaviour.refuses(body):
            self._answer(424, json.dumps({"error": "no such thing", "code": 424}).encode())
            return
        count = body["parameters"]["max_new_tokens"]
        records: list[dict[str, Any]] = [
            {"token": {"id": config.behaviour.token(body["inputs"], k), "text": "x"}} for k in range(count)
        ]
        records[-1] |= {
            "generated_text": "x" * count,
            "details": {
                "finish_reason": "length",
                "generated_tokens": count,
                "input_length": config.behaviour.input_length,
            },
        }
        self._answer(200, b"".join(json.dumps(record).encode() + b"\n" for record in records))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not of interest."""


@dataclass(slots=True)
class FakeServers:
    """Starts them, remembers all, and keeps a journal of starts and ends."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    lives: dict[str, list[FakeServer]] = field(default_factory=dict)

    def __call__(self, config: Configuration, log: Path) -> ReadyServer:
        life = FakeServer(config, self.behaviours.get(config.name, Behaviour()), self.journal)
        self.lives.setdefault(config.name, []).append(life)
        return life
