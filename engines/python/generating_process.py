"""The generating process as the dispatcher sees it: started, sent batches, read, killed and restarted."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from pathlib import Path

import msgspec

from engines.core import Request
from engines.python.link import Link, LinkClosed, Outbox
from engines.python.messages import Forget, FromGenerator, Run

logger = logging.getLogger(__name__)

_MODULE = "engines.python.worker"
_EXIT_SECONDS = 5.0
"""Time between the end of a process's socket and its exit, at most."""


class GeneratingProcessEnded(Exception):
    """The generating process is gone. The text says how, in a few words."""


class GeneratingProcess:
    """One generating process after the other. One thread: the kernel binds a child's life to its parent's thread."""

    def __init__(self, config: Path, status: Path) -> None:
        """Start the first one. config: `PythonEngineConfig` as JSON; status: the status board."""
        self._arguments = ["--config", str(config), "--status", str(status)]
        self._start()

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to receive. `restart` changes it."""
        return self._link.fileno()

    def run(self, requests: list[Request], deadline: float) -> None:
        """Start a batch, which ends with a `BatchDone`."""
        self._outbox.put(Run(requests, deadline))

    def forget(self, request_id: str) -> None:
        """Ask for no further output of this request."""
        self._outbox.put(Forget(request_id))

    def receive(self, timeout: float) -> Iterator[FromGenerator]:
        """Yield all messages that have arrived; wait at most `timeout` seconds for the first.

        Raises:
            GeneratingProcessEnded: after the last message of a process that is gone.
        """
        try:
            while (message := self._link.receive(timeout)) is not None:
                yield message
                timeout = 0.0
        except LinkClosed:
            raise GeneratingProcessEnded(self._describe_end()) from None

    def kill(self) -> None:
        """Send SIGKILL: the process keeps nothing that needs an orderly end. Idempotent."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Replace a process that is gone."""
        self.close()
        self._start()

    def close(self) -> None:
        """Kill the process and close the socket."""
        self.kill()
        self._outbox.close()
        self._link.close()

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", _MODULE, *self._arguments, "--socket", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], close_fds=True
            )
        self._link: Link[FromGenerator] = Link(ours, msgspec.msgpack.Decoder(FromGenerator))
        self._outbox = Outbox(self._link)
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
