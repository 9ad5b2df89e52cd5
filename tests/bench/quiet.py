"""Whether the machine is quiet: what all other processes compute while nothing of ours runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

MAX_BUSY_CORES = 0.1
"""With 10 % of one core taken, a step of two threads that wait for each other takes 14 % longer."""
_LOOK_SECONDS = 3.0
_MAX_NAMED = 3


class Busy(Exception):
    """Others compute. The text says how much, and who."""


@dataclass(frozen=True, slots=True)
class Load:
    """What others computed for a while."""

    cores: float
    """Mean number of busy cores; time that the hypervisor gave to other machines counts."""
    busiest: tuple[str, ...]
    """`name (PID): cores`, the busiest first; processes that have ended since are not among them."""

    def describe(self) -> str:
        who = f"; {', '.join(self.busiest)}" if self.busiest else ""
        return f"other processes keep {self.cores:.2f} cores busy{who}"


def look(seconds: float = _LOOK_SECONDS) -> Load:
    """Watch for so many seconds."""
    before, processes, started = _busy_seconds(), _process_seconds(), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    cores = (_busy_seconds() - before) / elapsed
    after = _process_seconds()
    used = {key: (after[key] - processes.get(key, 0.0)) / elapsed for key in after}
    ranked = sorted(used.items(), key=lambda item: -item[1])[:_MAX_NAMED]
    return Load(
        cores, tuple(f"{name} ({pid}): {share:.2f}" for (pid, name), share in ranked if share >= 0.01)
    )


def await_quiet(seconds: float, watch: Callable[[], Load] = look) -> Load:
    """Look until the machine is quiet, for so many seconds at most. Raises: Busy."""
    deadline = time.monotonic() + seconds
    while (load := watch()).cores > MAX_BUSY_CORES:
        if time.monotonic() >= deadline:
            raise Busy(
                f"the machine is busy: {load.describe()}. Figures would be wrong; end what runs, or see --busy-ok"
            )
    return load


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _process_seconds() -> dict[tuple[int, str], float]:
    found = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            found[process.info["pid"], process.info["name"]] = times.user + times.system
    return found
