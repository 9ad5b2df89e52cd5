"""Detect this machine's cores, free memory and GPUs. Requires neither torch nor a network; takes well under 1 s unless
the GPU driver is slow."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.host_memory import available_bytes, cgroup_folders, read_text

_SMI_TIMEOUT_S = 10.0
"""nvidia-smi takes seconds if no process has the driver loaded."""
INSTRUCTIONS = ("avx2", "avx512", "avx512_vnni", "amx")
"""Instruction sets of the native CPU kernels, as in `lmi_kernels.cpu.library`, whose package imports torch."""
THIS_MACHINE = "this machine"
_NO_GPUS = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs on purpose."""
_PACKAGES = ("lmi-server", "torch", "transformers", "tokenizers", "urllib3")


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of this machine that an engine may use."""

    cpu_count: int
    """Cores that this process may use according to its affinity and its cgroup's quota; at least 1."""
    memory_available_bytes: int
    """Free main memory within the cgroup's limit."""
    gpu_count: int = 0
    """GPUs that this process may use and that the installed torch can compute on."""
    gpu_names: tuple[str, ...] = ()
    """Name of each GPU; empty strings, or an empty tuple, if the names are unknown."""
    shared_memory_bytes: int | None = None
    """Free space in /dev/shm; None if it is missing or not writable, and therefore not used."""
    omp_num_threads: int | None = None
    """Value of OMP_NUM_THREADS; None if it is not set."""
    cpu_kernels: str = ""
    """The instruction set of the native CPU kernels; empty if torch is used instead."""
    cpu_kernels_problem: str = ""
    """The reason why LMI_CPU_KERNELS cannot be applied; else empty."""
    note: str = ""
    """The reason why existing GPUs are not counted, or none were found for a torch that needs them; else empty."""
    name: str = THIS_MACHINE
    """The machine's name in messages."""

    def threads(self, num_processes: int) -> int:
        """Return the number of threads for each of `num_processes` processes: OMP_NUM_THREADS, or a share of the cores.
        At most the number of cores, because threads that wait for each other spin."""
        return min(self.omp_num_threads or max(1, self.cpu_count // num_processes), self.cpu_count)


def detect(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Detect this machine's resources.

    environ: read for CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS and LMI_CPU_KERNELS; root: parent of /proc, /sys and /dev.
    """
    cgroups = cgroup_folders(root)
    gpus, visible = _gpus(root), environ.get("CUDA_VISIBLE_DEVICES")
    names = _visible(gpus, visible)
    kernels, kernels_problem = _cpu_kernels(environ.get("LMI_CPU_KERNELS", ""))
    note, build = "", _torch_build()
    if names and build == "cpu":
        found = "1 GPU is" if len(names) == 1 else f"{len(names)} GPUs are"
        note = (
            f"{found} not used: the installed torch is a CPU build; run make install TORCH=cuda, or build the image"
            " with --build-arg TORCH=cuda"
        )
        names = ()
    elif not gpus and build == "cuda" and visible not in _NO_GPUS:
        note = (
            "no GPU was found, although the installed torch is a CUDA build: the model is served on the CPU; in"
            " Docker, add --gpus all"
        )
    return Machine(
        cpu_count=_cpu_count(cgroups),
        memory_available_bytes=available_bytes(root),
        gpu_count=len(names),
        gpu_names=tuple(name for name, _ in names),
        shared_memory_bytes=_shared_memory(root / "dev/shm"),
        omp_num_threads=_omp_num_threads(environ.get("OMP_NUM_THREADS", "")),
        cpu_kernels=kernels,
        cpu_kernels_problem=kernels_problem,
        note=note,
    )


def describe(machine: Machine) -> str:
    """Describe cores, processor, free memory and GPUs in one line."""
    cores = "1 core" if machine.cpu_count == 1 else f"{machine.cpu_count} cores"
    gpus = "no GPU"
    if machine.gpu_count:
        names = ", ".join(sorted({name for name in machine.gpu_names if name}))
        gpus = f"{machine.gpu_count} GPU{'s' if machine.gpu_count > 1 else ''}" + (
            f" ({names})" if names else ""
        )
    model = re.search(r"^model name\s*:\s*(.+)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    processor = model[1].strip() if model else platform.machine()
    return f"{cores} ({processor}), {machine.memory_available_bytes / 1024**3:.1f} GiB free, {gpus}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that matter for measurements."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_count(cgroups: tuple[Path, ...]) -> int:
    count = float(len(os.sched_getaffinity(0)))
    for folder in cgroups:
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            count = min(count, int(quota) / int(period))
    return max(1, int(count))


def _omp_num_threads(text: str) -> int | None:
    """Return the first number of a list for nested levels; None for a value that OpenMP would ignore."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _shared_memory(folder: Path) -> int | None:
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _gpus(root: Path) -> tuple[tuple[str, str], ...]:
    """Return (name, UUID) of each GPU or MIG slice that the driver lists."""
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
    """Return (name, UUID) of each device in the output of `nvidia-smi -L`. MIG slices replace the GPUs."""
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
    """Return the GPUs that a process sees: those that CUDA_VISIBLE_DEVICES selects by indices or UUID prefixes, up to
    the first invalid one. CUDA gives a process at most one MIG slice."""
    selected: list[tuple[str, str]] = [] if visible is not None else list(gpus)
    for part in (visible or "").split(","):
        word = part.strip()
        if word.isdecimal():
            found = list(gpus[int(word) :][:1])
        else:
            # Without nvidia-smi the UUIDs are unknown.
            is_uuid = word.startswith(("GPU-", "MIG-"))
            found = [gpu for gpu in gpus if is_uuid and (gpu[1].startswith(word) or not gpu[1])][:1]
        if not found:
            break
        selected += found
    return tuple([gpu for gpu in selected if gpu[1].startswith("MIG")][:1] or selected)


def _cpu_kernels(wanted: str) -> tuple[str, str]:
    """Return the instruction set of the native kernels, empty without them, and the reason why `wanted` cannot be used.

    wanted: as for `lmi_kernels.cpu.library`. If the library is not built, every known value selects torch's kernels.
    """
    choose = _instruction_chooser()
    found = choose(wanted.encode() or None) if choose else None
    if found or not wanted:
        return (found or b"").decode(), ""
    allowed = (*(name for name in INSTRUCTIONS if choose is None or choose(name.encode())), "torch")
    if wanted in allowed:
        return "", ""
    return (
        "",
        f"LMI_CPU_KERNELS: not supported on this machine (got {wanted!r}); allowed: {', '.join(allowed)}",
    )


def _instruction_chooser() -> Callable[[bytes | None], bytes | None] | None:
    """Return the native library's function that selects an instruction set; None without a usable library.

    Loads the library directly, because its Python package imports torch.
    """
    spec = importlib.util.find_spec("lmi_kernels")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("cpu/_native*.so")):
            try:
                choose = ctypes.CDLL(str(path)).lmi_use_instructions
            except (OSError, AttributeError):
                return None
            choose.argtypes, choose.restype = [ctypes.c_char_p], ctypes.c_char_p
            return choose
    return None


def _torch_build() -> str:
    """Return `cpu` or `cuda` as in torch's version file, empty if unknown: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        match = re.search(r"^cuda\b[^=]*=\s*(.+)$", read_text(Path(folder) / "version.py"), re.MULTILINE)
        if match is None:
            return ""
        return "cpu" if match[1].strip() == "None" else "cuda"
    return ""
