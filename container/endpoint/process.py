"""The container of a variant as a local process: its start from a model, its health, its end."""

from __future__ import annotations

import http.client
import itertools
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from container.endpoint.model_data import ModelData
from container.run.cause import cause_of_death
from container.run.processes import Child

HOST = "127.0.0.1"
STOP_SECONDS = 30.0
"""Between SIGTERM and SIGKILL, as on the platform."""
_PING_SECONDS = 2.0
_POLL_SECONDS = 0.1
_OURS = ("OPTION_", "SERVING_", "SAGEMAKER_", "ARGS_", "HF_MODEL_ID", "LMI_ADMIN_TOKEN", "LMI_MODEL_DIR")
"""Variables of this process that a container does not get: they would change its configuration."""

Command = Callable[[Path], Sequence[str]]
"""The command of a container that serves a model folder on 127.0.0.1 and `SAGEMAKER_BIND_TO_PORT`."""


def serve_command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "container", "serve", str(folder), "--host", HOST]


class NotHealthy(Exception):
    """A container that did not start. The text is the cause, in one line."""


class ContainerProcess:
    """One running container. `Traffic` counts its requests in flight."""

    def __init__(self, child: Child, port: int, log: BinaryIO, starter: Executor) -> None:
        """starter: its thread started the child, and the kernel ends the two together."""
        self._starter = starter  # an executor that nobody refers to ends its thread
        self.port = port
        self.in_flight = 0
        self._child = child
        self._log = log

    @property
    def log(self) -> str:
        """The path of its output."""
        return self._log.name

    def death(self) -> str | None:
        """Why it ended, in one line; None while it runs."""
        code = self._child.poll()
        return None if code is None else cause_of_death("the container", code, self._child.last_lines())

    def wait_healthy(self, limit: float, stopping: threading.Event) -> None:
        """Wait at most `limit` seconds for a 200 of `/ping`. Raises NotHealthy."""
        deadline = time.monotonic() + limit
        answer = "no answer"
        while time.monotonic() < deadline:
            if (cause := self.death()) is not None:
                raise NotHealthy(cause)
            answer = self._ping()
            if answer == "200":
                return
            if stopping.wait(_POLL_SECONDS):
                raise NotHealthy("it was stopped")
        last = [line for line in self._child.last_lines() if line.strip()][-1:]
        raise NotHealthy("; ".join([f"/ping was not 200 within {limit:g} s (last: {answer})", *last]))

    def _ping(self) -> str:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_PING_SECONDS)
        try:
            connection.request("GET", "/ping")
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def terminate(self) -> None:
        self._child.terminate()

    def end(self, seconds: float) -> None:
        """Wait at most `seconds` for its end, then kill it with all its processes."""
        self._child.wait(seconds)
        self._child.kill_all()
        self._child.last_lines()  # waits until all its output is in the log
        self._log.close()


class Launcher:
    """Starts containers; their logs are in `folder`.

    command: what is started for a model folder; tests start something smaller.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], data: ModelData, command: Command = serve_command
    ) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in environ.items() if not name.startswith(_OURS)}
        self._data = data
        self._command = command
        self._numbers = itertools.count(1)
        self._starter = ThreadPoolExecutor(1, "container-starter")

    def launch(self, name: str, container: Mapping[str, Any]) -> ContainerProcess:
        """Start the container of a definition as in `create_model`. Raises NoModelData."""
        folder = self._data.folder_of(container)
        self._folder.mkdir(parents=True, exist_ok=True)
        log = (self._folder / f"{name}-{next(self._numbers)}.log").open("wb", buffering=0)
        port = _free_port()
        environ = {**self._environ, **container.get("Environment", {}), "SAGEMAKER_BIND_TO_PORT": str(port)}
        start = self._starter.submit(Child.start, name, self._command(folder), environ, log=log)
        return ContainerProcess(start.result(), port, log, self._starter)


def stop_all(processes: Sequence[ContainerProcess], seconds: float = STOP_SECONDS) -> None:
    """Send SIGTERM to all, and SIGKILL to those that still run after `seconds`."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.end(deadline - time.monotonic())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
