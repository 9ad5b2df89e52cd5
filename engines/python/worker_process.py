"""A child process of a dispatcher: start, message, kill and restart it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Pipe
from typing import Generic

import msgspec

from engines.process import signal_name
from engines.python.link import Incoming, Link, LinkClosed, Outbox
from engines.python.messages import Forget

logger = logging.getLogger(__name__)

_EXIT_SECONDS = 5.0
"""Maximum seconds between a process closing its socket and exiting."""
_KILL_SECONDS = 2.0
"""Maximum seconds to wait for a killed process. One that waits in the kernel, for a device or a disk, ends later."""
_MAX_MESSAGES = 64
"""Messages of a process to receive at a time. A process may send as fast as its dispatcher reads."""


class WorkerProcessEnded(Exception):
    """The process is gone. The message says how it ended."""


class WorkerProcess(Generic[Incoming]):
    """A restartable child process. Use it from one thread: the kernel binds the child's life to the parent's thread."""

    def __init__(self, name: str, command: Sequence[str], decoder: msgspec.msgpack.Decoder[Incoming]) -> None:
        """Start the process. name: for the log; command: gets `--socket` and the descriptor of its end of the link."""
        self._name = name
        self._command = command
        self._decoder = decoder
        self._start()

    def fileno(self) -> int:
        """Return the descriptor that is readable when a message has arrived. `restart` changes the descriptor."""
        return self._link.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message for sending. Never blocks."""
        self._outbox.put(message)

    def receive(self, timeout: float) -> Iterator[Incoming]:
        """Yield messages that have arrived; wait at most `timeout` seconds for the first.

        If many have arrived, some are left for the next call, so that the caller can do other work.

        Raises:
            WorkerProcessEnded: the process is gone, and its last message has been yielded.
        """
        try:
            for _ in range(_MAX_MESSAGES):
                if (message := self._link.receive(timeout)) is None:
                    return
                yield message
                timeout = 0.0
        except LinkClosed:
            raise WorkerProcessEnded(self._describe_end()) from None

    def forget(self, request_id: str) -> None:
        """Tell the process to send no further output for a request."""
        self.send(Forget(request_id))

    def kill(self) -> None:
        """Send SIGKILL to the process and to those that it has started, and wait for it briefly. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("%s, process %d, has been killed but has not ended", self._name, self._process.pid)

    def restart(self) -> None:
        """Start a new process in place of one that is gone."""
        self.close()
        self._start()

    def close(self) -> None:
        """Kill the process and those that it has started, and close the socket."""
        self.kill()
        self._outbox.close()
        self._link.close()

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, "--socket", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                close_fds=True,
                process_group=0,  # not a new session: the supervisor finds all engine processes by theirs
            )
        self._link: Link[Incoming] = Link(ours, self._decoder)
        try:
            self._outbox = Outbox(self._link)
        except RuntimeError:  # no thread is left
            self.kill()
            self._link.close()
            raise
        logger.info("%s is process %d", self._name, self._process.pid)

    def _describe_end(self) -> str:
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its socket but did not exit"
        if code >= 0:
            return f"it ended with exit code {code}"
        return f"it was killed by {signal_name(-code)}"
