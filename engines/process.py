"""Functions that every engine process calls at startup, and the names of signals that end one. Linux only."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends in any way."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def engine_arguments(description: str | None, argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line of an engine. argv: None for that of the process."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, required=True, help="the engine's configuration as JSON")
    parser.add_argument("--status", type=Path, required=True, help="status board; its folder has the sockets")
    parser.add_argument("--address", required=True, help="ZeroMQ address to listen on for web processes")
    return parser.parse_args(argv)


def signal_name(number: int) -> str:
    """Return the name of a signal that ended a process, with who may have sent it."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (kill -9, or the kernel when out of memory)" if name == "SIGKILL" else name


def process_age() -> float:
    """Return the seconds since this process was started, including its imports."""
    start_ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
