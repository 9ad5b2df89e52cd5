"""Fake models with in-process servers, on a machine with configurable memory."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

from container.machine import Machine
from container.multi_model.manager import ModelManager
from container.multi_model.memory import MemoryAccount, Room
from container.multi_model.served_model import MemoryNeed
from container.run.local_server import LocalServer, NotHealthy
from tests.support.loopback import LoopbackServer, QuietHandler


class FakeServer(LocalServer):
    """A server that responds with the name of its model."""

    def __init__(self, folder: Path, need: MemoryNeed, lab: FakeModels) -> None:
        self.folder = folder
        self.need = need
        self.dead = ""
        self.hang = ""
        """Why the server hangs, as the next check finds out."""
        self.signals = 0
        self.ended = threading.Event()
        self._ending = threading.Lock()
        self.http = _Http(self, lab)
        self.http.start()
        self.port = self.http.server_port
        self._lab = lab

    @property
    def pid(self) -> int:
        return id(self)

    def death(self) -> str | None:
        return self.dead or None

    def check(self) -> None:
        self.dead = self.hang or self.dead

    def wait_healthy(self, limit: float, stopping: threading.Event) -> None:
        name = self.folder.name
        while not self._lab.gates.get(name, self._lab.healthy).wait(0.005):
            if stopping.is_set():
                raise NotHealthy("it was stopped")
        if self._lab.loading_seconds > limit:
            raise NotHealthy(f"/ping did not return 200 within {limit:g} s")
        if reason := self._lab.broken_once.pop(name, "") or self._lab.broken.get(name):
            raise NotHealthy(reason)

    def terminate(self) -> None:
        self.signals += 1

    def end(self, seconds: float) -> None:
        with self._ending:
            if not self.ended.is_set():
                self.ended.set()
                self.http.close()


class FakeModels:
    """Starts fake servers, and defines how much memory they need and use. Bytes are small numbers here."""

    def __init__(self) -> None:
        self.free = 100
        """Free memory of the machine."""
        self.needs: dict[str, int] = {}
        """Predicted memory by model. Models that are not listed need 10."""
        self.taken: dict[int, int] = {}
        """Measured memory by pid."""
        self.broken: dict[str, str] = {}
        """Reasons for failed starts, by model."""
        self.broken_once: dict[str, str] = {}
        """Reasons for starts of which only the first one fails, by model."""
        self.healthy = threading.Event()
        self.healthy.set()
        """Servers wait for this event before they are healthy."""
        self.gates: dict[str, threading.Event] = {}
        """Events in place of `healthy`, by model."""
        self.loading_seconds = 0.0
        """Time that loading is supposed to take, with the download. No server really waits for it."""
        self.go = threading.Event()
        """Requests wait for this event."""
        self.go.set()
        self.arrived = threading.Semaphore(0)
        self.metrics = "# TYPE lmi_steps counter\nlmi_steps_total 3\n"
        """Text of `/metrics` of each server."""
        self.scrapes = threading.Barrier(1)
        """Scrapes of servers wait until as many have begun."""
        self.servers: list[FakeServer] = []
        self.num_up: list[int] = []
        """Number of running servers after each start."""
        self.managers: list[ModelManager] = []

    def manager(self, *names: str, limit: int | None = None, loading_limit: float = math.inf) -> ModelManager:
        """Create a manager that loads `names` on demand, or with explicit `load` and `unload` if there are none.

        limit: memory that all models may use. loading_limit: seconds that the platform waits for a model.
        """
        folders = {name: Path("/models") / name for name in names}
        account = MemoryAccount(
            {}, limit, 0, lambda pid: self.taken.get(pid, 0), lambda environ: Machine(2, self.free)
        )
        self.managers.append(ModelManager(folders, account, self.predict, self.start, loading_limit))
        return self.managers[-1]

    def loaded(self, *names: str, limit: int | None = None) -> ModelManager:
        """Create a manager that has loaded these models explicitly."""
        manager = self.manager(limit=limit)
        load(manager, *names)
        return manager

    def predict(self, folder: Path, room: Room) -> MemoryNeed:
        return MemoryNeed(self.needs.get(folder.name, 10))

    def start(self, name: str, folder: Path, need: MemoryNeed) -> FakeServer:
        self.servers.append(FakeServer(folder, need, self))
        self.num_up.append(len(self.up()))
        return self.servers[-1]

    def up(self) -> list[str]:
        """Return the models with running servers, in the order of their start."""
        return [server.folder.name for server in self.servers if not server.ended.is_set()]


def load(manager: ModelManager, *names: str) -> None:
    for name in names:
        manager.load(name, Path("/models") / name)


def served_by(manager: ModelManager, name: str) -> str:
    """Return the model whose server handles requests for `name`."""
    lease = manager.lease(name)
    try:
        assert isinstance(lease.server, FakeServer)
        assert not lease.server.ended.is_set()
        return lease.server.folder.name
    finally:
        lease.release()


def states(manager: ModelManager) -> dict[str, str]:
    return {model.name: model.state.value for model in manager.models()}


class _Http(LoopbackServer):
    def __init__(self, server: FakeServer, lab: FakeModels) -> None:
        super().__init__(_Handler)
        self.server = server
        self.lab = lab


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        self.server.lab.scrapes.wait()
        self.respond(200, self.server.lab.metrics.encode(), {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.lab.arrived.release()
        self.server.lab.go.wait(200)
        if body == b"drop":
            self.close_connection = True
            return
        if body in (b"stream", b"break"):
            self._stream(broken=body == b"break")
            return
        if body == b"bare":
            self.send_response(418, "Tea")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        response = {"model": self.server.server.folder.name, "path": self.path, "bytes": len(body)}
        headers = {"Content-Type": "application/json", "x-request-id": self.headers.get("x-request-id", "")}
        self.respond(200, json.dumps(response).encode(), headers)

    def _stream(self, broken: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/jsonlines")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in (b'{"token":1}\n', b'{"token":2}\n'):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if not broken:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True
