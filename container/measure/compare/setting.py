"""Where and with what a comparison is run."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
from pathlib import Path

from container.machine import Machine
from container.measure.compare.report import Setting

_PACKAGES = ("lmi-server", "torch", "transformers", "tokenizers")


def setting(command: str, machine: Machine) -> Setting:
    """As things are now."""
    return Setting(
        command=command,
        when=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        machine=describe(machine),
        versions={"Python": platform.python_version(), **versions()},
    )


def describe(machine: Machine) -> str:
    """Cores and their kind, free memory, GPUs."""
    cores = "1 core" if machine.cpu_count == 1 else f"{machine.cpu_count} cores"
    gpus = "no GPU"
    if machine.gpu_count:
        names = ", ".join(sorted({name for name in machine.gpu_names if name}))
        gpus = f"{machine.gpu_count} GPU(s)" + (f": {names}" if names else "")
    free = machine.memory_available_bytes / 1024**3
    return f"{cores} ({_processor()}), {free:.1f} GiB of memory free before the run, {gpus}"


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.machine()


def versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
