"""What this machine has: cores, free memory, GPUs. Found without torch and without a connection, in well under 1 s."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SMI_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What an engine may use here."""

    cpu_count: int
    """Cores that this process may use: its affinity and its cgroup's quota, at least 1."""
    memory_available_bytes: int
    """Main memory that can be taken now, within the cgroup's limit."""
    gpu_count: int = 0
    """GPUs that this process may use and that the installed torch can compute on."""
    gpu_names: tuple[str, ...] = ()
    """As many as `gpu_count`, or none where they are not known."""
    shared_memory_bytes: int | None = None
    """What is free in /dev/shm; None where it is not there or cannot be written, and nothing is put there."""
    cpu_kernels: str = ""
    """The instruction set of the native CPU kernels; empty where torch serves instead."""
    note: str = ""
    """Why GPUs that are there are not counted; else empty."""


def detect(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Look at this machine. `environ` gives CUDA_VISIBLE_DEVICES; `root` is where /proc, /sys and /dev are."""
    cgroups = _cgroup_folders(root)
    names = _visible(_gpus(root), environ.get("CUDA_VISIBLE_DEVICES"))
    note = ""
    if names and _torch_is_cpu_build():
        note = (
            f"{len(names)} GPU(s) are not used: the installed torch is a CPU build (make install TORCH=cuda)"
        )
        names = ()
    return Machine(
        cpu_count=_cpu_count(cgroups),
        memory_available_bytes=_memory_available(root, cgroups),
        gpu_count=len(names),
        gpu_names=tuple(name for name, _ in names),
        shared_memory_bytes=_shared_memory(root / "dev/shm"),
        cpu_kernels=_cpu_kernels(environ.get("LMI_CPU_KERNELS", "")),
        note=note,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _cgroup_folders(root: Path) -> tuple[Path, ...]:
    """Folders of this process's cgroup and its parents, cgroup v2 and v1; limits of any of them bind."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") if controllers else [""]:
            top = root / "sys/fs/cgroup" / controller
            own = top / path.lstrip("/")
            # In a container the path of the host's view may not be there; the top then is the own group.
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return tuple(dict.fromkeys(folders))


def _cpu_count(cgroups: tuple[Path, ...]) -> int:
    count = float(len(os.sched_getaffinity(0)))
    for folder in cgroups:
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            count = min(count, int(quota) / int(period))
    return max(1, int(count))


def _memory_available(root: Path, cgroups: tuple[Path, ...]) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    for folder in cgroups:
        for limit_file, usage_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read(folder / limit_file), _read(folder / usage_file)
            if not (limit.isdecimal() and usage.isdecimal()):
                continue
            # Pages of files that nobody has touched lately are given back before anything fails.
            cache = re.search(rf"^{cache_key} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            free = int(limit) - int(usage) + (int(cache[1]) if cache else 0)
            available = min(available, max(0, free))
    return available


def _shared_memory(folder: Path) -> int | None:
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _gpus(root: Path) -> tuple[tuple[str, str], ...]:
    """(name, UUID) of each GPU or MIG slice that the driver shows here."""
    devices = sorted(root.glob("dev/nvidia[0-9]*"))
    if not devices and not (root / "dev/dxg").exists():
        return ()
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return tuple(("", "") for _ in devices)
    return parse_listing(listing)


def parse_listing(listing: str) -> tuple[tuple[str, str], ...]:
    """(name, UUID) of each device in the output of `nvidia-smi -L`; a GPU cut into MIG slices is its slices."""
    gpus: list[tuple[str, str]] = []
    slices: list[tuple[str, str]] = []
    for line in listing.splitlines():
        match = re.match(
            r"\s*(?P<name>(GPU|MIG).*?)\s*(Device\s+\d+)?:(?P<rest>.*)\(UUID: (?P<uuid>[^)]+)\)", line
        )
        if match is None:
            continue
        if match["uuid"].startswith("MIG"):
            slices.append((match["name"].strip(), match["uuid"]))
        else:
            gpus.append((match["rest"].strip(), match["uuid"]))
    return tuple(slices or gpus)


def _visible(gpus: tuple[tuple[str, str], ...], visible: str | None) -> tuple[tuple[str, str], ...]:
    """What CUDA_VISIBLE_DEVICES leaves: indices or beginnings of UUIDs, up to the first that is not there."""
    if visible is None:
        return gpus
    left: list[tuple[str, str]] = []
    for part in visible.split(","):
        word = part.strip()
        if word.isdecimal():
            found = [gpus[int(word)]] if int(word) < len(gpus) else []
        else:
            found = [gpu for gpu in gpus if word and gpu[1].startswith(word)][:1]
        if not found:
            break
        left += found
    return tuple(left)


def _cpu_kernels(wanted: str) -> str:
    """Ask the library itself, without what surrounds it, which imports torch. wanted: as `lmi_kernels.cpu.library`
    takes it."""
    spec = importlib.util.find_spec("lmi_kernels")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("cpu/_native*.so")):
            try:
                choose = ctypes.CDLL(str(path)).lmi_use_instructions
            except (OSError, AttributeError):
                return ""
            choose.argtypes, choose.restype = [ctypes.c_char_p], ctypes.c_char_p
            found: bytes | None = choose(wanted.encode() or None)
            return (found or b"").decode()
    return ""


def _torch_is_cpu_build() -> bool:
    """Read off torch's version file, for importing torch takes seconds. False where there is no torch."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        match = re.search(r"^cuda\b[^=]*=\s*(.+)$", _read(Path(folder) / "version.py"), re.MULTILINE)
        return match is not None and match[1].strip() == "None"
    return False
