"""The dispatcher's view of the generating process: it is started, told, heard, killed, and started again."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from engines.core import Request
from engines.python.link import Link, LinkClosed, dispatcher_end
from engines.python.messages import Forget, FromGenerator, Run

logger = logging.getLogger(__name__)

_MODULE = "engines.python.worker"
_EXIT_SECONDS = 5.0
"""Between the end of a process's socket and its exit."""


class GeneratorEnded(Exception):
    """The generating process is gone. The text says how, in a few words."""


class Generator:
    """One generating process after the other. One thread: the kernel binds a child's life to the one it comes from."""

    def __init__(self, config: Path, status: Path) -> None:
        """Start the first one. config: `PythonEngineConfig` as JSON; status: the status board."""
        self._arguments = ["--config", str(config), "--status", str(status)]
        self._start()

    def fileno(self) -> int:
        """Readable when there is something to receive. Another one after `restart`."""
        return self._link.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        return self._link.has_unsent

    def run(self, requests: list[Request], deadline: float) -> None:
        """Have a batch generated; `BatchDone` will tell that it is through."""
        self._link.send(Run(requests, deadline))

    def forget(self, request_id: str) -> None:
        """No further output for this one."""
        self._link.send(Forget(request_id))

    def receive(self, timeout: float) -> Iterator[FromGenerator]:
        """All messages that are there; waits at most `timeout` seconds for the first.

        Raises:
            GeneratorEnded: after the last message of a process that is gone.
        """
        self._link.flush()
        try:
            while (message := self._link.receive(timeout)) is not None:
                yield message
                timeout = 0.0
        except LinkClosed:
            raise GeneratorEnded(self._describe_end()) from None

    def kill(self) -> None:
        """SIGKILL: it keeps nothing that would need an orderly end. Idempotent."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Another process in the place of one that is gone."""
        self.close()
        self._start()

    def close(self) -> None:
        """Kill it and let go of the socket."""
        self.kill()
        self._link.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", _MODULE, *self._arguments, "--socket", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], close_fds=True
            )
        self._link: Link[FromGenerator] = dispatcher_end(ours)
        logger.info("the generating process is %d", self._process.pid)

    def _describe_end(self) -> str:
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its socket and did not end"
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        known = " (somebody's kill -9, or the kernel for want of memory)" if name == "SIGKILL" else ""
        return f"it was ended by {name}{known}"
