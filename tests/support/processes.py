"""Find every process that a server has started, even if its parent has exited."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import psutil

MARK = "LMI_TEST_MARK"
"""Environment variable that identifies descendants after their parent has exited."""

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)
_RANK_MODULE = re.compile(r"engines\.mpi\.\w+")
_RANK_NUMBER = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except _GONE:
        return False


def marked(mark: str) -> set[psutil.Process]:
    """All running processes with this mark in their environment."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            if process.environ().get(MARK) == mark and _alive(process):
                found.add(process)
    return found


def descendants(pid: int) -> set[psutil.Process]:
    """The running descendants of a process."""
    try:
        return {process for process in psutil.Process(pid).children(recursive=True) if _alive(process)}
    except _GONE:
        return set()


def with_argument(processes: Iterable[psutil.Process], holds: Callable[[str], bool]) -> list[psutil.Process]:
    """The running `processes` with an argument for which `holds` is true."""
    found = []
    for process in processes:
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            if any(holds(word) for word in process.cmdline()):
                found.append(process)
    return found


def wait_exited(processes: Collection[psutil.Process], timeout: float) -> list[psutil.Process]:
    """Wait until `processes` have exited, and return those that still run after `timeout` seconds.

    Polls, since psutil's wait functions would take the exit code away from the parent.
    """
    deadline = time.monotonic() + timeout
    while (running := [process for process in processes if _alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except (*_GONE, psutil.AccessDenied):
        return f"{process.pid} (gone)"


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL, then SIGCONT for stopped processes."""
    for process in processes:
        with contextlib.suppress(*_GONE):
            process.send_signal(signal.SIGKILL)
            process.send_signal(signal.SIGCONT)


def engine_ranks(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """The engine's ranks among `processes`, by rank number. Without mpirun there is only rank 0."""
    ranks = {}
    for process in processes:
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            if not Path(process.exe()).name.startswith("python"):
                continue  # the command of mpirun includes that of the ranks
            if not any(_RANK_MODULE.fullmatch(argument) for argument in process.cmdline()):
                continue
            environment = process.environ()
            number = next((environment[name] for name in _RANK_NUMBER if name in environment), "0")
            ranks[int(number)] = process
    return ranks
