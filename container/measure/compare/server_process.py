"""Run a server as a child process, from its start to an orderly stop."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from container.errors import UserError
from container.measure.compare.configurations import Configuration
from container.measure.compare.scrape import NoMetrics
from container.run import launch
from container.run.local_server import HOST, free_port, ping, serve_command
from container.run.processes import Child, process_tree
from container.run.stop_signals import StopRequested
from engines.host_memory import bytes_of
from lmi_server.properties.problems import PropertiesError

_POLL_SECONDS = 0.1
_PING_SECONDS = 5.0
_SPARE_SECONDS = 60.0
"""Added to the configuration's own time limit for loading, which the server enforces itself."""
_TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class StopTimeouts:
    """Seconds allowed for each step of stopping a server."""

    stop: float = 35.0
    """Wait after SIGTERM, while the server finishes its requests."""
    second_signal: float = 1.5
    """Wait before a second SIGTERM, which stops the server at once. Signals within one second count as one."""
    at_once: float = 5.0
    """Wait after the second SIGTERM, before the server is killed."""


class ServerFailed(UserError):
    """A server did not start or stop as it should. The message may end with the last lines of its log, from its second
    line on."""


def with_logs(message: str, folder: Path) -> str:
    """Add the folder of the servers' logs to a message that does not name it. A folder without files is removed."""
    if not any(path.is_file() for path in folder.rglob("*")):
        shutil.rmtree(folder)
        return message
    return message if str(folder) in message else f"{message}; the servers' logs are in {folder}"


@contextmanager
def logs_folder(prefix: str) -> Iterator[Path]:
    """Create a folder for servers' logs, which stays after the block, and add it to NoMetrics and ServerFailed.

    It is removed after a stop signal and other errors for users, because no log shows their cause.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except (NoMetrics, ServerFailed) as error:
        raise type(error)(with_logs(str(error), folder)) from error
    except (UserError, PropertiesError, StopRequested):
        shutil.rmtree(folder, ignore_errors=True)
        raise


class ReadyServer(Protocol):
    """A server that answers requests."""

    @property
    def url(self) -> str:
        """`http://host:port`."""

    @property
    def start_up_seconds(self) -> float | None:
        """Time from the process start to the first 200 of `/ping`; None if the server was already running."""

    def peak_memory(self) -> int | None:
        """Return the sum of the peak resident set sizes of its processes, in bytes; None if unknown."""

    def stop(self) -> None:
        """Stop the server and wait. Raises ServerFailed if it does not stop cleanly."""

    def kill(self) -> None:
        """Stop the server at once, whatever its state. Idempotent."""


StartServer = Callable[[Configuration, Path, Mapping[str, str]], ReadyServer]
"""Function of (configuration, log file, environment variables to add) that starts a server and returns when it is
ready. Raises ServerFailed."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that was started by someone else. It is never stopped."""

    url: str
    start_up_seconds: float | None = None

    def peak_memory(self) -> int | None:
        return None

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def environment_for_servers() -> Mapping[str, str]:
    """Return this process's environment without the admin token and the step trace, which are for other servers."""
    environ = launch.without_admin_token(launch.environment())
    return {name: value for name, value in environ.items() if name != launch.STEP_TRACE}


def server_starter(environ: Mapping[str, str]) -> StartServer:
    """Return a function that starts servers with the environment `environ`."""

    def start(config: Configuration, log_path: Path, variables: Mapping[str, str]) -> ReadyServer:
        if config.url:
            return RunningServer(config.url)
        return ServerProcess.start(config, log_path, {**environ, **variables})

    return start


class ServerProcess:
    """`python -m container serve`; the kernel kills it when this process ends."""

    def __init__(
        self, child: Child, port: int, log: BinaryIO, timeouts: StopTimeouts = StopTimeouts()
    ) -> None:
        self._port = port
        self.url = f"http://{HOST}:{port}"
        self.pid = child.pid
        self.start_up_seconds = 0.0
        self._child = child
        self._log = log
        self._timeouts = timeouts

    @classmethod
    def start(cls, config: Configuration, log_path: Path, environ: Mapping[str, str]) -> Self:
        """Start and wait until `/ping` answers 200. Raises ServerFailed."""
        if config.path is None:
            raise ValueError(f"{config.name} is a running server")
        command = [*serve_command(config.path.resolve()), "--port"]
        return cls.launch(config.name, command, config.loading_timeout + _SPARE_SECONDS, log_path, environ)

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
        """Start a server by `command` with a port appended, and wait until the path `health` answers 200.

        limit: time limit, in seconds. Raises ServerFailed.
        """
        started = time.monotonic()
        try:
            port = free_port()
            log = log_path.open("ab", buffering=0)
            child = Child.start(name, [*command, str(port)], environ, log=log)
        except OSError as error:
            raise ServerFailed(f"{name}: the server cannot be started: {error}") from error
        server = cls(child, port, log)
        try:
            server._wait_ready(started, limit, health)
        except BaseException:
            server.kill()
            raise
        return server

    def peak_memory(self) -> int | None:
        return sum(bytes_of(Path(f"/proc/{pid}/status"), "VmHWM") for pid in process_tree(self.pid)) or None

    def stop(self) -> None:
        self._child.terminate()
        code = self._child.wait(self._timeouts.stop)
        self.kill()
        if code is None:
            raise self._failed(f"the server did not exit within {self._timeouts.stop:g} s of SIGTERM")
        if code != 0:
            raise self._failed(f"the server exited with code {code}")

    def kill(self) -> None:
        if self._child.poll() is None:
            # On a second SIGTERM the server stops at once, but still cleans up.
            self._child.terminate()
            if self._child.wait(self._timeouts.second_signal) is None:
                self._child.terminate()
                self._child.wait(self._timeouts.at_once)
        self._child.kill_all()
        self._child.last_lines()  # waits until all its output is in the log
        self._log.close()

    def _wait_ready(self, started: float, limit: float, health: str) -> None:
        while time.monotonic() < started + limit:
            code = self._child.poll()
            if code is not None:
                raise self._failed(f"the server exited with code {code} before it was ready")
            if ping(self._port, health, _PING_SECONDS) == "200":
                self.start_up_seconds = time.monotonic() - started
                return
            time.sleep(_POLL_SECONDS)
        raise self._failed(f"the server was not ready within {limit:g} s")

    def _failed(self, what: str) -> ServerFailed:
        self._child.last_lines()
        path = Path(self._log.name)
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        lines = "\n".join(f"  {line}" for line in tail)
        return ServerFailed(f"{self._child.name}: {what}\nEnd of its log, {path}:\n{lines}")
