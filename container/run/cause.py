"""Why a child process ended, in one line, from its exit code and last output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.process import signal_name

_MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)")
_MPI_EXIT = re.compile(r"Process name: \[.*?,(\d+)\]\s+Exit code:\s+(\d+)")
_MPI_BANNER = re.compile(r"^-{20,}$.*?^-{20,}$", re.MULTILINE | re.DOTALL)

_GUNICORN_LINE = re.compile(r"\[[^]]+\] \[\d+\] \[[A-Z]+\] ")
"""A line that gunicorn logs. An error of the app in it precedes such lines."""


def cause_of_death(name: str, code: int, last_lines: Sequence[str]) -> str:
    """Return in one line why the process `name` ended; for MPI ranks, which rank ended first.

    code: exit code as from `subprocess`; negative for a signal.
    """
    text = "\n".join(last_lines)
    if match := _MPI_SIGNAL.search(text):
        return f"{name}: rank {match[1]} was killed by {signal_name(int(match[2]))}"
    if code < 0:
        return f"{name} was killed by {signal_name(-code)}"  # killed from outside, so the last output is unrelated
    what = f"{name} ended with exit code {code}"
    if match := _MPI_EXIT.search(text):
        what = f"{name}: rank {match[1]} ended with exit code {match[2]}"
    lines = [line.strip() for line in _MPI_BANNER.sub("", text).splitlines() if line.strip()]
    lines = [line for line in lines if not _GUNICORN_LINE.match(line)] or lines
    return f"{what}: {lines[-1]}" if lines else what
