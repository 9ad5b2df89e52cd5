"""Functions that every engine process calls at start-up, and the names of signals that end one. Linux only."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from functools import partial
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends in any way."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_sigterm() -> None:
    """Do nothing on SIGTERM, which systemd sends to every process of a service. The supervisor ends engines by `Drain`.

    Programs and forks that this process starts have the default again, and its code may set a handler of its own.
    """
    signal.signal(signal.SIGTERM, _do_nothing)
    # A fork that gets SIGTERM at once must end, too, so it gets the signal only after its handler has been reset.
    hold, release = partial(_mask_sigterm, signal.SIG_BLOCK), partial(_mask_sigterm, signal.SIG_UNBLOCK)
    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=_reset_sigterm)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal. A function, unlike SIG_IGN, is not inherited by the programs that a process runs."""


def _mask_sigterm(how: int) -> None:
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.pthread_sigmask(how, {signal.SIGTERM})


def _reset_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


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
    start_ticks = int(Path("/proc/self/stat").read_bytes().rsplit(b")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
