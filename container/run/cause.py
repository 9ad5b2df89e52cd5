"""Why a child process ended, in one line, from its exit code and its last words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

_MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)")
_MPI_EXIT = re.compile(r"Process name: \[.*?,(\d+)\]\s+Exit code:\s+(\d+)")
_MPI_BANNER = re.compile(r"^-{20,}$.*?^-{20,}$", re.MULTILINE | re.DOTALL)


def signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (somebody's kill -9, or the kernel for want of memory)" if name == "SIGKILL" else name


def describe_exit(code: int) -> str:
    return f"ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def cause_of_death(name: str, code: int, last_lines: Sequence[str]) -> str:
    """One line: what ended the process `name`; of MPI ranks, which one was the first.

    code: as `subprocess` gives it; negative for a signal.
    """
    text = "\n".join(last_lines)
    if match := _MPI_SIGNAL.search(text):
        return f"{name}: rank {match[1]} was ended by {signal_name(int(match[2]))}"
    what = f"{name} {describe_exit(code)}"
    if code < 0:
        return what  # killed from outside: its last words were about something else
    if match := _MPI_EXIT.search(text):
        what = f"{name}: rank {match[1]} ended with exit code {match[2]}"
    words = [line.strip() for line in _MPI_BANNER.sub("", text).splitlines() if line.strip()]
    return f"{what}: {words[-1]}" if words else what
