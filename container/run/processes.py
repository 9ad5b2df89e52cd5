"""Child processes with all their descendants: each child has a session of its own, by which they are found."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

_EXEC_BOUND = Path(__file__).with_name("exec_bound.py")
_LINES_KEPT = 40
_LAST_LINES_SECONDS = 10.0
_OPEN_PIPE_SECONDS = 0.5
"""Time for the last lines of a process that has left others behind, which keep its stderr open."""


def _processes() -> dict[int, list[str]]:
    """/proc/PID/stat of each process from the third field on: state, parent, process group, session, ..."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text()
            found[int(entry.name)] = text[text.rindex(")") + 2 :].split()
    return found


def session_members(session: int) -> set[int]:
    """The living processes of a session, without zombies."""
    return {
        pid for pid, fields in _processes().items() if int(fields[3]) == session and fields[0] not in "ZX"
    }


def process_tree(root: int) -> set[int]:
    """`root` and its living descendants."""
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


def reap_adopted(own: set[int]) -> None:
    """Reap ended processes that the kernel made our children, as it does for the first process of a container."""
    for pid, fields in _processes().items():
        if int(fields[1]) == os.getpid() and fields[0] == "Z" and pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class Child:
    """A child process, its session, and the last lines of its stderr.

    Start it from the main thread: the kernel kills it when the thread that started it ends.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], stderr: IO[bytes], log: IO[bytes] | None = None
    ) -> None:
        self.name = name
        self._log = log
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._pump = threading.Thread(target=self._copy, args=(stderr,), name=f"{name}-stderr", daemon=True)
        self._pump.start()

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        nice: int = 0,
        pass_fds: Sequence[int] = (),
        log: IO[bytes] | None = None,
    ) -> Self:
        """Start `command` at a niceness of `nice`. It inherits stdout; its stderr is copied to ours.

        log: gets both instead; open it unbuffered and for appending, because both write to it.
        """
        bound = [sys.executable, "-I", "-S", str(_EXEC_BOUND), str(os.getpid()), str(nice), *command]
        process = subprocess.Popen(
            bound,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.PIPE,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
        if process.stderr is None:
            raise RuntimeError("Popen gave no pipe for stderr")
        return cls(name, process, process.stderr, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, minus the number of the signal that ended it, or None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the process only."""
        if self.poll() is None:
            self._process.terminate()

    def wait(self, timeout: float) -> int | None:
        """Wait for at most `timeout` seconds; returns as `poll`."""
        try:
            return self._process.wait(max(timeout, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def kill_all(self, timeout: float = 3.0) -> bool:
        """Send SIGKILL to every process of the session until none is left. False if one is left after `timeout`."""
        deadline = time.monotonic() + timeout
        while True:
            members = session_members(self.pid)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.poll()
            if not members or time.monotonic() > deadline:
                return not members
            time.sleep(0.01)

    def last_lines(self) -> list[str]:
        """The last lines of its stderr; complete once the process has ended."""
        if self.poll() is not None:
            self._pump.join(_OPEN_PIPE_SECONDS if session_members(self.pid) else _LAST_LINES_SECONDS)
        return list(self._lines)

    def _copy(self, stderr: IO[bytes]) -> None:
        with stderr:
            for line in iter(stderr.readline, b""):
                self._lines.append(line.decode(errors="replace").rstrip())
                with contextlib.suppress(OSError, ValueError):  # our own stderr may be closed
                    target = self._log or sys.stderr.buffer
                    target.write(line)
                    target.flush()
