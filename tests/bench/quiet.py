"""Check whether the machine is quiet: measure the CPU use of other processes while no contender runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

MAX_BUSY_CORES = 0.1
"""With 10 % of one core in use, a step of two threads that wait for each other takes 14 % longer."""
_LOOK_SECONDS = 3.0
_MAX_NAMED = 3


class Busy(Exception):
    """Other processes use the CPU. The message names them and how much they use."""


@dataclass(frozen=True, slots=True)
class Load:
    """CPU use of other processes over some seconds."""

    cores: float
    """Mean number of busy cores, including time that the hypervisor gave to other machines."""
    busiest: tuple[str, ...]
    """`name (PID): cores`, the busiest first, without processes that have exited."""

    def describe(self) -> str:
        names = f"; {', '.join(self.busiest)}" if self.busiest else ""
        return f"other processes keep {self.cores:.2f} cores busy{names}"


def look() -> Load:
    """Measure the CPU use for some seconds."""
    before, processes, started = _busy_seconds(), _process_seconds(), time.monotonic()
    time.sleep(_LOOK_SECONDS)
    elapsed = time.monotonic() - started
    cores = (_busy_seconds() - before) / elapsed
    after = _process_seconds()
    used = {key: (after[key] - processes.get(key, 0.0)) / elapsed for key in after}
    ranked = sorted(used.items(), key=lambda item: -item[1])[:_MAX_NAMED]
    return Load(
        cores, tuple(f"{name} ({pid}): {share:.2f}" for (pid, name), share in ranked if share >= 0.01)
    )


def await_quiet(seconds: float) -> Load:
    """Wait until the machine is quiet, for at most `seconds`. Raises: Busy."""
    deadline = time.monotonic() + seconds
    while (load := look()).cores > MAX_BUSY_CORES:
        if time.monotonic() >= deadline:
            raise Busy(
                f"the machine is busy: {load.describe()}. Figures would be wrong. Stop these processes or use --busy-ok"
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
