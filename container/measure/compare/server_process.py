"""The server of one configuration: `lmi serve` as a child process, from its start to a proper end."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from container.measure.compare.configurations import Arm
from container.run.processes import Child, process_tree

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.1
_PING_SECONDS = 5.0
_SPARE_SECONDS = 60.0
"""Added to the configuration's own limit for loading, which its server watches itself."""
_TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a server's end may take."""

    stop: float = 35.0
    """After SIGTERM, on which it lets its requests end."""
    second_signal: float = 1.5
    """Before another one, on which it ends at once; it takes signals within a second for one."""
    at_once: float = 5.0
    """After that one; then it is killed."""


class ArmFailed(Exception):
    """A server did not start, or did not end as it should. The text ends with the last lines of its log."""


class RunningArm(Protocol):
    """A server that is ready."""

    url: str
    """`http://host:port`."""
    start_up_seconds: float
    """From the start of the process to the first 200 of `/ping`."""

    def peak_memory(self) -> int | None:
        """Bytes: the sum of each process's peak resident set so far; None where it is not known."""

    def stop(self) -> None:
        """End it and wait until it has ended. Raises `ArmFailed` when it did not end well."""

    def kill(self) -> None:
        """End it at once, in whatever state it is; harmless after its end."""


class StartArm(Protocol):
    """Starts the server of a configuration; a test starts something else."""

    def __call__(self, arm: Arm, log: Path) -> RunningArm:
        """Returns when it is ready. Raises `ArmFailed`."""


def _free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    return port


class ArmServer:
    """`python -m container serve`, bound to our life: the kernel ends it when we end, however that happens."""

    def __init__(
        self, name: str, child: Child, port: int, log: BinaryIO, patience: Patience = Patience()
    ) -> None:
        self.url = f"http://{_HOST}:{port}"
        self.pid = child.pid
        self.start_up_seconds = 0.0
        self._name = name
        self._child = child
        self._log = log
        self._log_path = Path(log.name)
        self._patience = patience

    @classmethod
    def start(cls, arm: Arm, log_path: Path, environ: Mapping[str, str]) -> Self:
        """Start and wait until `/ping` answers 200. Raises `ArmFailed`."""
        command = [sys.executable, "-m", "container", "serve", str(arm.path.resolve())]
        command += ["--host", _HOST, "--port"]
        return cls.launch(arm.name, command, arm.loading_timeout + _SPARE_SECONDS, log_path, environ)

    @classmethod
    def launch(
        cls,
        name: str,
        command: Sequence[str],
        limit: float,
        log_path: Path,
        environ: Mapping[str, str],
        health: str = "/ping",
    ) -> Self:
        """Start any server by `command` with a port added, and wait until `health` answers 200.

        limit: seconds until then. Raises `ArmFailed`.
        """
        port = _free_port()
        started = time.monotonic()
        log = log_path.open("ab", buffering=0)
        child = Child.start(name, [*command, str(port)], environ, log=log)
        server = cls(name, child, port, log)
        try:
            server._wait_ready(started, limit, health)
        except BaseException:
            server.kill()
            raise
        return server

    def peak_memory(self) -> int | None:
        peaks = [_peak_bytes(pid) for pid in process_tree(self._child.pid)]
        return sum(peaks) or None

    def stop(self) -> None:
        self._child.terminate()
        code = self._child.wait(self._patience.stop)
        self.kill()
        if code is None:
            raise self._failed(f"its server did not end within {self._patience.stop:g} s of SIGTERM")
        if code != 0:
            raise self._failed(f"its server ended with exit code {code}")

    def kill(self) -> None:
        if self._child.poll() is None:
            # Twice SIGTERM: it ends at once, and cleans up behind itself.
            self._child.terminate()
            if self._child.wait(self._patience.second_signal) is None:
                self._child.terminate()
                self._child.wait(self._patience.at_once)
        self._child.kill_all()
        self._child.last_lines()  # the rest of what it said is in the log
        self._log.close()

    def _wait_ready(self, started: float, limit: float, health: str) -> None:
        while time.monotonic() < started + limit:
            code = self._child.poll()
            if code is not None:
                raise self._failed(f"its server ended with exit code {code} before it was ready")
            if _answers(self.url + health):
                self.start_up_seconds = time.monotonic() - started
                return
            time.sleep(_POLL_SECONDS)
        raise self._failed(f"its server was not ready within {limit:g} s")

    def _failed(self, what: str) -> ArmFailed:
        self._child.last_lines()
        tail = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        lines = "\n".join(f"  {line}" for line in tail)
        return ArmFailed(f"{self._name}: {what}. Its log, {self._log_path}, ends with\n{lines}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_PING_SECONDS) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return False


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        if match := re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE):
            return int(match[1]) * 1024
    return 0
