"""An LMI server on 127.0.0.1 as a child process: its port, health check and shutdown."""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import json
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

from container.errors import BadVariable
from container.run import peer
from container.run.launch import BIND_TO_PORT
from container.run.processes import Child

HOST = "127.0.0.1"
_PORTS = range(10_000, 32_768)
"""Ports to choose from. In Linux's ephemeral range, above these, an outgoing connection could take the port first."""
SAFE_PORT_RANGE = "SAGEMAKER_SAFE_PORT_RANGE"
"""Environment variable with the ports that the platform leaves to this container, as FIRST-LAST."""
_PORT_TRIES = 100
STOP_SECONDS = 30.0
"""Time between SIGTERM and SIGKILL, as on SageMaker."""
_PING_SECONDS = 2.0
_POLL_SECONDS = 0.1
_CHECK_SECONDS = 10.0
CHECK_INTERVAL = 20.0
"""Seconds between two calls of `LocalServer.check`."""
_MAX_FAILED_CHECKS = 3
"""Number of consecutive failed checks after which a running server counts as dead. The limit is not a time, because no
checks happen while a container is paused."""

Command = Callable[[Path], Sequence[str]]
"""A function that returns the command to serve a model folder on 127.0.0.1 and `SAGEMAKER_BIND_TO_PORT`."""


def serve_command(folder: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "container", "serve", str(folder), "--host", HOST]


@functools.cache
def _starter() -> Executor:
    """The thread that starts servers. It never ends, because the kernel kills a child with its starting thread."""
    return ThreadPoolExecutor(1, "server-starter")


def second_ports(environ: Mapping[str, str]) -> range:
    """Return the ports that a container may use besides its own. Raises BadVariable."""
    if not (text := environ.get(SAFE_PORT_RANGE, "").strip()):
        return _PORTS
    if match := re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII):
        first, last = map(int, match.groups())
        if 0 < first <= last < 65536:
            return range(first, last + 1)
    raise BadVariable(
        f"{SAFE_PORT_RANGE}={text!r} is not a range of ports;"
        " allowed: FIRST-LAST within 1 to 65535, such as 21000-21999"
    )


def free_port(ports: Sequence[int] = _PORTS, taken: Collection[int] = ()) -> int:
    """Return a free TCP port of 127.0.0.1, chosen at random, so that servers that start together get different ones.

    taken: ports of servers that may not listen yet.
    Raises: OSError: no port was free in `_PORT_TRIES` tries.
    """
    for port in random.SystemRandom().sample(ports, min(len(ports), _PORT_TRIES + len(taken))):
        if port in taken:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(errno.EADDRINUSE, f"no free port of {HOST} found in {ports[0]} to {ports[-1]}")


def ping(port: int, path: str = "/ping", timeout: float = _PING_SECONDS) -> str:
    """Return the status of a GET as text, or why there is no response of this user's server."""
    try:
        return str(_get(port, path, timeout)[0])
    except _AnotherUsersProcess as error:
        return str(error)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


def _why_it_hangs(port: int) -> str:
    """Return in one line why a server hangs; empty if it makes progress, restarts its engine, or stops."""
    try:
        body = json.loads(_get(port, "/ping", _CHECK_SECONDS)[1])
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"no response to /ping ({type(error).__name__})"
    return str(body["reason"]) if body.get("state") == "ready" else ""  # healthy servers return no state


def _get(port: int, path: str, timeout: float) -> tuple[int, bytes]:
    """Return status and body of a GET. Raises OSError, HTTPException.

    Until the server listens, another user's process may take its port. Nothing is read from such a process.
    """
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=timeout)) as connection:
        connection.connect()
        if not peer.is_trusted(HOST, port, peer.LISTENING):
            raise _AnotherUsersProcess("another user's process has the port")
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


class _AnotherUsersProcess(OSError):
    """The port belongs to a process of another user."""


class NotHealthy(Exception):
    """A server did not start. The message is the cause, in one line."""


class LocalServer:
    """One running server. `in_flight` is a counter for the code that sends requests to it."""

    def __init__(self, child: Child, port: int, log: IO[bytes] | None = None) -> None:
        """log: the file that gets the server's output."""
        self.port = port
        self.in_flight = 0
        self._child = child
        self._log = log
        self._failed_checks = 0
        self._hang = ""

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: IO[bytes] | None = None,
        port: int | None = None,
    ) -> Self:
        """Start a server without waiting until it is healthy.

        name: in messages; log: as for `Child.start`; port: to listen on, by default any free one.
        """
        port = port or free_port()
        environ = {**environ, BIND_TO_PORT: str(port)}
        child = _starter().submit(Child.start, name, command, environ, log=log)
        return cls(child.result(), port, log)

    @property
    def log(self) -> str:
        """Path of the file with the server's output; empty if the output goes to this process's."""
        return self._log.name if self._log else ""

    @property
    def pid(self) -> int:
        return self._child.pid

    def death(self) -> str | None:
        """Return in one line why the server ended, or why it hangs according to `check`; None while it runs."""
        if (cause := self._child.death()) is not None:
            return cause
        return (
            f"{self._child.name} hangs: {self._hang}" if self._failed_checks >= _MAX_FAILED_CHECKS else None
        )

    def check(self) -> None:
        """Ping a server that was healthy, to notice whether it hangs. Call it every `CHECK_INTERVAL`."""
        self._hang = _why_it_hangs(self.port)
        self._failed_checks = self._failed_checks + 1 if self._hang else 0

    def wait_healthy(self, limit: float, stopping: threading.Event) -> None:
        """Wait at most `limit` seconds until `/ping` returns 200. Raises NotHealthy."""
        deadline = time.monotonic() + limit
        answer = "none"
        while time.monotonic() < deadline:
            if (cause := self.death()) is not None:
                raise NotHealthy(cause)
            answer = ping(self.port)
            if answer == "200":
                return
            if stopping.wait(_POLL_SECONDS):
                raise NotHealthy("the server was stopped before it was ready")
        last = [line for line in self._child.last_lines() if line.strip()][-1:]
        raise NotHealthy(
            "; ".join([f"/ping did not return 200 within {limit:g} s (last response: {answer})", *last])
        )

    def terminate(self) -> None:
        self._child.terminate()

    def end(self, seconds: float) -> None:
        """Wait at most `seconds` for the server to end, then kill all its processes."""
        self._child.wait(seconds)
        self._child.kill_all()
        self._child.last_lines()  # waits until all its output has been copied
        if self._log:
            self._log.close()


def stop_all(servers: Sequence[LocalServer], seconds: float = STOP_SECONDS) -> None:
    """Send SIGTERM to all servers, and SIGKILL to those that still run after `seconds`."""
    for server in servers:
        server.terminate()
    deadline = time.monotonic() + seconds
    for server in servers:
        server.end(deadline - time.monotonic())
