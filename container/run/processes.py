"""Child processes and their descendants. Each child has its own session, by which its descendants are found."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Self, TextIO

from container.lossy_output import LossyOutput
from container.run.cause import cause_of_death

_EXEC_BOUND = Path(__file__).with_name("exec_bound.py")
_LINES_KEPT = 40
_MAX_LINE_BYTES = 64 << 10
"""A longer line of output is split, because some programs never write a newline."""
_KILL_SECONDS = 3.0
_LAST_LINES_SECONDS = 10.0
_OPEN_PIPE_SECONDS = 0.5
"""Time to read the last lines of a process whose output is kept open by descendants that still run."""


def _processes() -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat by PID, from the third on: state, parent, process group, session, ..."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text(errors="replace")  # a name may be cut within a character
            found[int(entry.name)] = text[text.rindex(")") + 2 :].split()
    return found


def session_members(session: int) -> set[int]:
    """Return the PIDs of a session's living processes, without zombies."""
    return {
        pid for pid, fields in _processes().items() if int(fields[3]) == session and fields[0] not in "ZX"
    }


def process_tree(root: int) -> set[int]:
    """Return the PIDs of `root` and its living descendants."""
    children: dict[int, list[int]] = {}
    for pid, fields in _processes().items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found


def reap_orphans(excluded: set[int]) -> None:
    """Reap orphans that the kernel gave to this process, the first one of a container. excluded: PIDs to skip."""
    for pid, fields in _processes().items():
        if int(fields[1]) == os.getpid() and fields[0] == "Z" and pid not in excluded:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def bound(command: Sequence[str], nice: int = 0, blocked: int = 0) -> list[str]:
    """Return a command that runs `command`, and that the kernel kills when the thread that starts it ends."""
    settings = map(str, (os.getpid(), nice, int(blocked)))
    return [sys.executable, "-I", "-S", str(_EXEC_BOUND), *settings, *command]


class Child:
    """A child process, its session, and the last lines of its stderr.

    Start it from the main thread, because the kernel kills a child when the thread that started it ends.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: IO[bytes] | None = None) -> None:
        self.name = name
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._pumps: list[threading.Thread] = []
        if process.stdout is not None:
            self._pump(process.stdout, sys.stdout, deque(maxlen=0))
        if process.stderr is not None:
            self._pump(process.stderr, log or sys.stderr, self._lines)

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        nice: int = 0,
        pass_fds: Sequence[int] = (),
        log: IO[bytes] | None = None,
        blocked: int = 0,
    ) -> Self:
        """Start `command` with niceness `nice`. Its stdout and stderr are copied to those of this process.

        log: gets both instead. Open it unbuffered and for appending, because both processes write to it.
        blocked: a signal that the process does not get, even if it sets a handler.
        Raises: OSError: there is no memory, process, file or thread left.
        """
        process = subprocess.Popen(
            bound(command, nice, blocked),
            stdin=subprocess.DEVNULL,
            stdout=log or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
        try:
            return cls(name, process, log)
        except RuntimeError as error:  # no thread can be started
            with process:
                process.kill()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def death(self) -> str | None:
        """Return in one line why the process ended; None while it runs."""
        code = self.poll()
        return None if code is None else cause_of_death(self.name, code, self.last_lines())

    def terminate(self) -> None:
        """Send SIGTERM to the process only."""
        if self.poll() is None:
            self._process.terminate()

    def wait(self, timeout: float) -> int | None:
        """Wait at most `timeout` seconds for the end of the process. Returns the same as `poll`."""
        try:
            return self._process.wait(max(timeout, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def kill_all(self) -> None:
        """Send SIGKILL to the session's processes until none is left, for at most `_KILL_SECONDS`."""
        deadline = time.monotonic() + _KILL_SECONDS
        while (members := session_members(self.pid)) and time.monotonic() < deadline:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.poll()

    def last_lines(self) -> list[str]:
        """Return the last lines of the child's stderr; complete once the process has ended."""
        if self.poll() is not None:
            seconds = _OPEN_PIPE_SECONDS if session_members(self.pid) else _LAST_LINES_SECONDS
            for pump in self._pumps:
                pump.join(seconds)
        return list(self._lines)

    def _pump(self, source: IO[bytes], target: IO[bytes] | TextIO, last_lines: deque[str]) -> None:
        """Start a thread that copies `source` to the file of `target`, and keeps the last lines."""
        output = LossyOutput(target)

        def copy() -> None:
            with source:
                for line in iter(partial(source.readline, _MAX_LINE_BYTES), b""):
                    last_lines.append(line.decode(errors="replace").rstrip())
                    output.write(line)

        thread = threading.Thread(target=copy, name=f"{self.name}-output", daemon=True)
        thread.start()
        self._pumps.append(thread)
