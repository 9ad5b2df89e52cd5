"""Child processes with all that they start: each in a session of its own, by which it is found again."""

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


def _stat_fields(pid: str) -> list[str] | None:
    """/proc/PID/stat from the third field on (state, parent, process group, session, ...); None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _processes() -> dict[int, list[str]]:
    found = ((int(entry), _stat_fields(entry)) for entry in os.listdir("/proc") if entry.isdecimal())  # noqa: PTH208
    return {pid: fields for pid, fields in found if fields is not None}


def session_members(session: int) -> set[int]:
    """The living processes of a session, zombies not counted."""
    return {
        pid for pid, fields in _processes().items() if int(fields[3]) == session and fields[0] not in "ZX"
    }


def process_tree(root: int) -> set[int]:
    """`root` and all that it started, directly or not, as far as it lives and was not adopted by another."""
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
    """Collect ended processes that the kernel made our children: the first process of a container gets them all."""
    for pid, fields in _processes().items():
        if int(fields[1]) == os.getpid() and fields[0] == "Z" and pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class Child:
    """A child process, the session it leads, and the last lines it wrote to stderr.

    Start it from the main thread: the kernel binds its life to the thread that started it.
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
        """Start `command`, `nice` steps below us. It inherits stdout; its stderr is copied to ours.

        log: takes both instead; opened unbuffered and for appending, for both write to it.
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
        """SIGTERM to the process alone."""
        if self.poll() is None:
            self._process.terminate()

    def wait(self, timeout: float) -> int | None:
        """As `poll`, after waiting for at most `timeout` seconds."""
        try:
            return self._process.wait(max(timeout, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def kill_all(self, timeout: float = 3.0) -> bool:
        """SIGKILL to every process of the session, until none is left. False if one is left after `timeout`."""
        deadline = time.monotonic() + timeout
        while True:
            left = session_members(self.pid)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.poll()
            if not left or time.monotonic() > deadline:
                return not left
            time.sleep(0.01)

    def last_lines(self) -> list[str]:
        """What it last wrote to stderr. Complete once the process has ended."""
        if self.poll() is not None:
            self._pump.join(timeout=0.5)
        return list(self._lines)

    def _copy(self, stderr: IO[bytes]) -> None:
        with stderr:
            for line in iter(stderr.readline, b""):
                self._lines.append(line.decode(errors="replace").rstrip())
                with contextlib.suppress(OSError, ValueError):  # our own stderr may be closed
                    target = self._log or sys.stderr.buffer
                    target.write(line)
                    target.flush()
