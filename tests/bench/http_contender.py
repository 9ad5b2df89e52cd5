"""Contenders with an HTTP server: this server with a properties folder, and peers with a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.measure.bench.arrivals import Users
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.load import LoadRun, run_load
from container.measure.bench.workload import BenchRequest
from container.measure.compare.configurations import Configuration
from container.measure.compare.server_process import ServerFailed, ServerProcess
from tests.bench.contender import Broken, Facts, Running

_REQUEST_SECONDS = 900.0
_WEIGHT_BYTES = {"int8": 1.0}
_STORED_BYTES = 2.0
"""The benchmarked checkpoints are in fp16 or bf16."""
_AUTO_KV = "fp32"
"""Precision that `auto` selects on a CPU."""


class RunningServer:
    """A server that is ready."""

    def __init__(self, server: ServerProcess, dialect: str) -> None:
        self.pid = server.pid
        self.start_up_seconds = server.start_up_seconds
        self._server = server
        self._dialect = DIALECTS[dialect]

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        sessions = Users(num_users).sessions(requests, 0)
        return run_load(self._server.url, self._dialect, sessions, _REQUEST_SECONDS, lambda outcome: None)

    def end(self) -> None:
        self._server.kill()


@dataclass(frozen=True, slots=True)
class Ours:
    """This server."""

    config: Configuration
    versions: dict[str, str]
    environ: Mapping[str, str]
    dialect: str = "openai"
    """`openai`, as for peers with a server; or `lmi`, whose streams have the log-probability of each token."""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def facts(self) -> Facts:
        values = self.config.values
        quantized = values.get("option.quantize", "none")
        int8 = quantized == "int8"
        size_gb = values.get("option.kv_cache_gb", "")
        kv_cache = values.get("option.kv_cache_dtype", "auto")
        return Facts(
            weights=f"{values.get('option.dtype', '?')}{', int8 weights and activations' if int8 else ''}",
            kv_cache=f"{_AUTO_KV if kv_cache == 'auto' else kv_cache}{f', {size_gb} GB' if size_gb else ''}",
            interface=f"HTTP, {DIALECTS[self.dialect].path}",
            weight_bytes=_WEIGHT_BYTES.get(quantized, _STORED_BYTES),
            arithmetic="int8" if int8 else "fp32",
            notes=f"{self.config.path}, weights stored as in the checkpoint where that is lossless",
            versions=self.versions,
        )

    def start(self, log: Path) -> Running:
        try:
            return RunningServer(ServerProcess.start(self.config, log, self.environ), self.dialect)
        except ServerFailed as error:
            raise Broken(str(error)) from error


@dataclass(frozen=True, slots=True)
class PeerServer:
    """A peer with an OpenAI-compatible server that accepts `--port N` as its last arguments."""

    name: str
    facts: Facts
    command: tuple[str, ...]
    environ: Mapping[str, str]
    health: str
    limit: float = 1200.0
    """Seconds until the server must be ready."""

    def start(self, log: Path) -> Running:
        try:
            server = ServerProcess.launch(
                self.name, (*self.command, "--port"), self.limit, log, self.environ, self.health
            )
        except ServerFailed as error:
            raise Broken(str(error)) from error
        return RunningServer(server, "openai")
