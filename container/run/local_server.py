"""A server of this program on 127.0.0.1 as a child process: its port, its health, its end."""

from __future__ import annotations

import contextlib
import functools
import http.client
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

from container.run.cause import cause_of_death
from container.run.launch import BIND_TO_PORT
from container.run.processes import Child

HOST = "127.0.0.1"
_PORTS = range(10_000, 32_768)
"""Below those that Linux gives to outgoing connections, one of which might take the port before the server has it."""
STOP_SECONDS = 30.0
"""Between SIGTERM and SIGKILL, as on the platform."""
_PING_SECONDS = 2.0
_POLL_SECONDS = 0.1

Command = Callable[[Path], Sequence[str]]
"""The command of a server of a model folder on 127.0.0.1 and `SAGEMAKER_BIND_TO_PORT`."""


def serve_command(folder: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "container", "serve", str(folder), "--host", HOST]


@functools.cache
def _starter() -> Executor:
    """The thread that starts servers. It stays: the kernel ends a child with the thread that started it."""
    return ThreadPoolExecutor(1, "server-starter")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago; another one each time, for servers that start together."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def ping(port: int, path: str = "/ping", timeout: float = _PING_SECONDS) -> str:
    """The status of a GET as text, or the name of the error that prevented an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


class NotHealthy(Exception):
    """A server that did not start. The text is the cause, in one line."""


class LocalServer:
    """One running server. `in_flight` is for whoever sends it requests."""

    def __init__(self, what: str, child: Child, port: int, log: IO[bytes] | None = None) -> None:
        """what: its name in messages; log: the file of its output."""
        self.port = port
        self.in_flight = 0
        self._what = what
        self._child = child
        self._log = log

    @classmethod
    def start(
        cls, what: str, command: Sequence[str], environ: Mapping[str, str], log: IO[bytes] | None = None
    ) -> Self:
        """Start a server; its health is yet to be waited for. log: as of `Child.start`."""
        port = free_port()
        environ = {**environ, BIND_TO_PORT: str(port)}
        child = _starter().submit(Child.start, what, command, environ, log=log)
        return cls(what, child.result(), port, log)

    @property
    def log(self) -> str:
        """The path of its output; empty where it goes to ours."""
        return self._log.name if self._log else ""

    @property
    def pid(self) -> int:
        return self._child.pid

    def death(self) -> str | None:
        """Why it ended, in one line; None while it runs."""
        code = self._child.poll()
        return None if code is None else cause_of_death(self._what, code, self._child.last_lines())

    def wait_healthy(self, limit: float, stopping: threading.Event) -> None:
        """Wait at most `limit` seconds for a 200 of `/ping`. Raises NotHealthy."""
        deadline = time.monotonic() + limit
        answer = "no answer"
        while time.monotonic() < deadline:
            if (cause := self.death()) is not None:
                raise NotHealthy(cause)
            answer = ping(self.port)
            if answer == "200":
                return
            if stopping.wait(_POLL_SECONDS):
                raise NotHealthy("it was stopped")
        last = [line for line in self._child.last_lines() if line.strip()][-1:]
        raise NotHealthy("; ".join([f"/ping was not 200 within {limit:g} s (last: {answer})", *last]))

    def terminate(self) -> None:
        self._child.terminate()

    def end(self, seconds: float) -> None:
        """Wait at most `seconds` for its end, then kill it with all its processes."""
        self._child.wait(seconds)
        self._child.kill_all()
        self._child.last_lines()  # waits until all its output has been copied
        if self._log:
            self._log.close()


def stop_all(servers: Sequence[LocalServer], seconds: float = STOP_SECONDS) -> None:
    """Send SIGTERM to all, and SIGKILL to those that still run after `seconds`."""
    for server in servers:
        server.terminate()
    deadline = time.monotonic() + seconds
    for server in servers:
        server.end(deadline - time.monotonic())
