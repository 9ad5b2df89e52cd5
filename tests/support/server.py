"""A real server as a child process (`python -m container serve`), with its log and its processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from container.run.local_server import free_port
from tests.support import processes
from tests.support.client import Client
from tests.support.paths import REPO_ROOT, child_environment

READY_TIMEOUT = 240.0
"""Time limit until `/ping` returns 200. Machines that run tests are busy."""
EXIT_TIMEOUT = 120.0
_RANKS = re.compile(r"tensor_parallel_degree *= *([2-9]|max)")
ADMIN_TOKEN = "test-token"
"""Gives access to `/admin` of every server started here."""
ADMIN_HEADERS = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


def properties_text(model: Path | str, engine: str = "MPI", **options: object) -> str:
    """A serving.properties. `options`: `option.*` keys, and keys of dynamic batching, which have no prefix.

    Booleans are written in lower case.
    """
    lines = {"engine": engine, "option.model_id": str(model)}
    for name, value in options.items():
        key = name if name in ("batch_size", "max_batch_delay") else f"option.{name}"
        lines[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _pin_to_core(properties: str) -> list[str]:
    """Command prefix that pins the server of each xdist worker to one core.

    Two servers with a thread on each core would mostly wait for their own threads. Servers with ranks keep all cores.
    """
    worker, taskset = os.environ.get("PYTEST_XDIST_WORKER"), shutil.which("taskset")
    if worker is None or taskset is None or _RANKS.search(properties):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return [taskset, "-c", str(cores[int(worker.removeprefix("gw")) % len(cores)])]


class ServerError(AssertionError):
    """The server failed, or did not react in time. The message ends with the tail of its log."""


class Server:
    """A running server. A context manager: entering it waits until the server is ready, leaving it stops the server and
    all of its processes."""

    def __init__(
        self,
        folder: Path,
        properties: str,
        *,
        environment: Mapping[str, str] | None = None,
        pass_port: bool = True,
        served: Path | None = None,
        cwd: Path = REPO_ROOT,
    ) -> None:
        """Write `properties` into `folder` and start the server. `pass_port=False` omits `--port`.

        served: the folder to serve instead of `folder`. cwd: the working directory of the server.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.log_path = folder / "server.log"
        (folder / "serving.properties").write_text(properties, encoding="latin-1")
        self._mark = uuid.uuid4().hex
        self._seen: set[psutil.Process] = set()
        self.client = Client(f"http://127.0.0.1:{self.port}")
        extra = {name: value.replace("{port}", str(self.port)) for name, value in (environment or {}).items()}
        extra.setdefault("LMI_ADMIN_TOKEN", ADMIN_TOKEN)
        command = [sys.executable, "-P", "-m", "container", "serve", str(served or folder)]
        command += ["--host", "127.0.0.1"]
        command[:0] = _pin_to_core(properties)
        if pass_port:
            command += ["--port", str(self.port)]
        self.started = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=child_environment({**extra, processes.MARK: self._mark}),
                start_new_session=True,
            )

    @property
    def base_url(self) -> str:
        return self.client.base_url

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self, num_lines: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-num_lines:])

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> float:
        """Wait until `/ping` returns 200. Return the seconds since the start."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.client.ping(timeout=30.0) == 200:
                self._seen |= self.processes()
                return time.monotonic() - self.started
            if (code := self.process.poll()) is not None:
                raise ServerError(f"exit code {code} before the server was ready\n{self.log_tail()}")
            time.sleep(0.05)
        raise ServerError(f"/ping is not 200 after {timeout:.0f} s\n{self.log_tail()}")

    def processes(self) -> set[psutil.Process]:
        """The server's running processes: those of its tree, and those with its mark."""
        found = processes.marked(self._mark) | processes.descendants(self.pid)
        if self.process.poll() is None:
            found.add(psutil.Process(self.pid))
        self._seen |= found
        return found

    def ranks(self) -> dict[int, psutil.Process]:
        """The engine's ranks by number."""
        return processes.engine_ranks(self.processes())

    def wait_exit(self, timeout: float = EXIT_TIMEOUT) -> int | None:
        """Return the exit code, or None if the server still runs after `timeout` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def leftover_processes(self, timeout: float = 120.0) -> list[str]:
        """Describe the processes that still run after `timeout` seconds, one line each."""
        leftover = processes.wait_exited(self._seen | self.processes(), timeout)
        return [processes.describe(process) for process in leftover]

    def stop(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Send SIGTERM, and require exit code 0 and an empty process tree."""
        self.processes()
        self.process.terminate()
        code = self.wait_exit(timeout)
        leftover = self.leftover_processes()
        self.destroy()
        if code != 0 or leftover:
            raise ServerError(f"SIGTERM: exit code {code}, processes left: {leftover}\n{self.log_tail()}")

    def destroy(self) -> None:
        """Kill all remaining processes."""
        processes.kill(self._seen | self.processes())
        self.process.wait()

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.destroy()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and self.process.poll() is None:
            self.stop()
        else:
            self.destroy()
