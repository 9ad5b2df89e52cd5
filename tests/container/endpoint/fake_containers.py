"""Containers as small in-process HTTP servers. Their environment controls their behavior."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from container.run.local_server import LocalServer, NotHealthy
from tests.support.endpoints import ENDPOINT, EndpointLab, FakeLauncher, RunningContainer, lab
from tests.support.loopback import LoopbackServer, QuietHandler

SESSION = "X-Amzn-SageMaker-Session-Id"
CLOSED_SESSION = "X-Amzn-SageMaker-Closed-Session-Id"
ECHOED = ("Content-Type", "X-Amzn-SageMaker-Custom-Attributes")
"""Request headers that responses repeat."""


class FakeContainer(RunningContainer):
    """A container that echoes request bodies and records request headers. The body `close` closes a session.

    Environment variables: FAIL is the status of every response. UNHEALTHY is the reason for a failed start. HOLD makes
    requests wait for `go`. BREAK cuts responses off. STALL makes streams wait for `go` after each chunk.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.server = _Server(self)
        super().__init__(self.server.start().server_port)
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.events: list[bytes] = []
        """Chunks of a stream of `/v1/chat/completions`."""
        self.go = threading.Event()
        self.arrived = threading.Semaphore(0)
        """Released by each request on arrival."""
        self.dead: str | None = None
        self.hang: str | None = None
        """Why the container hangs, as the next check finds out."""
        self.ended = False

    def death(self) -> str | None:
        return self.dead

    def check(self) -> None:
        self.dead = self.hang or self.dead

    def wait_healthy(self, limit: float, stopping: threading.Event) -> None:
        if reason := self.environment.get("UNHEALTHY"):
            raise NotHealthy(reason)

    def terminate(self) -> None:
        self.ended = True

    def end(self, seconds: float) -> None:
        if self.server.listening:
            self.server.listening = False
            self.server.close()


@dataclass(frozen=True, slots=True)
class FakeLab(EndpointLab):
    """A platform, and its fake containers in the order of their start."""

    containers: list[FakeContainer]

    def invoke(self, body: bytes = b"x", **params: Any) -> Any:
        return self.runtime.invoke_endpoint(EndpointName=ENDPOINT, Body=body, **params)


@contextmanager
def fake_lab(**options: Any) -> Iterator[FakeLab]:
    """Serve a platform with fake containers during the block. options: as of `lab`."""
    containers: list[FakeContainer] = []

    def launch(container: Mapping[str, Any]) -> LocalServer:
        containers.append(FakeContainer(container.get("Environment", {})))
        return containers[-1]

    with lab(FakeLauncher(launch), **options) as running:
        yield FakeLab(running.platform, running.url, running.sagemaker, running.runtime, containers)


class _Server(LoopbackServer):
    def __init__(self, container: FakeContainer) -> None:
        super().__init__(_Handler)
        self.container = container
        self.listening = True


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        container = self.server.container
        environment = container.environment
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        container.paths.append(self.path)
        container.headers.append({name.lower(): value for name, value in self.headers.items()})
        container.arrived.release()
        if "HOLD" in environment:
            container.go.wait(200)
        self.close_connection = True
        if status := int(environment.get("FAIL", "0")):
            self.respond(status, json.dumps({"error": "as asked", "code": status}).encode(), {})
        elif self.path == "/v1/chat/completions" and json.loads(body).get("stream"):
            self._stream(container.events, "text/event-stream", broken="BREAK" in environment)
        elif "WithResponseStream" in self.headers.get("X-Amzn-SageMaker-Forwarded-Api", ""):
            self._stream(
                body.splitlines(keepends=True), "application/jsonlines", broken="BREAK" in environment
            )
        else:
            session = self.headers.get(SESSION) == "NEW_SESSION"
            session_header = {SESSION: "s1; Expires=2030-01-01T00:00:00Z"} if session else {}
            if body == b"close":
                session_header = {CLOSED_SESSION: self.headers[SESSION]}
            echoed = {name: self.headers.get(name, "") for name in ECHOED}
            self.respond(200, body, echoed | session_header, missing=int("BREAK" in environment))

    def _stream(self, chunks: list[bytes], content_type: str, broken: bool) -> None:
        """Send each chunk as one of the response. Without BREAK, the response is complete."""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if "STALL" in self.server.container.environment:
                self.server.container.go.wait(200)
        if not broken:
            self.wfile.write(b"0\r\n\r\n")
