"""Detection of CPUs, memory and GPUs, from fake /proc, /sys and /dev files."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from container import machine as machine_module
from container.machine import INSTRUCTIONS, detect, parse_listing
from lmi_kernels.cpu import library

GIB = 1024**3
H200 = "GPU 0: NVIDIA H200 (UUID: GPU-11aa)\nGPU 1: NVIDIA H200 (UUID: GPU-22bb)\n"
SLICED = (
    "GPU 0: NVIDIA H100 (UUID: GPU-11aa)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-a)\n"
    "  MIG 1g.10gb     Device  1: (UUID: MIG-b)\n"
)


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "threads"), [("3", 3), (" 4,2", 4), ("64", 5), ("", 2), ("0", 2), ("-1", 2), ("many", 2)]
)
def test_omp_num_threads_sets_the_threads_of_each_process(text: str, threads: int) -> None:
    machine = detect({"OMP_NUM_THREADS": text})
    assert replace(machine, cpu_count=5).threads(2) == threads


def test_cpu_kernels_that_this_machine_lacks_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.INSTRUCTIONS == INSTRUCTIONS

    def problem(wanted: str) -> str:
        return detect({"LMI_CPU_KERNELS": wanted}).cpu_kernels_problem

    def choose(wanted: bytes | None) -> bytes | None:
        return wanted if wanted in (b"avx2", b"avx512") else None

    monkeypatch.setattr(machine_module, "_instruction_chooser", lambda: choose)
    for name in ("sse", "amx"):
        allowed = "avx2, avx512, torch"
        message = f"LMI_CPU_KERNELS: not supported on this machine (got {name!r}); allowed: {allowed}"
        assert problem(name) == message
    assert detect({"LMI_CPU_KERNELS": "avx512"}).cpu_kernels == "avx512"
    assert [problem(name) for name in ("avx2", "torch", "")] == [""] * 3
    monkeypatch.setattr(machine_module, "_instruction_chooser", lambda: None)
    assert problem("sse").endswith("allowed: avx2, avx512, avx512_vnni, amx, torch")
    assert [problem(name) for name in (*INSTRUCTIONS, "torch", "")] == [""] * 6


def test_this_machine_is_detected() -> None:
    machine = detect(os.environ)
    assert 1 <= machine.cpu_count <= len(os.sched_getaffinity(0))
    assert machine.memory_available_bytes > 0


def test_without_cgroup_limits_the_kernel_values_apply(tmp_path: Path) -> None:
    machine = detect({}, write_files(tmp_path, {}))
    assert machine.memory_available_bytes == 8 * GIB
    assert machine.cpu_count == len(os.sched_getaffinity(0))
    assert machine.gpu_count == 0


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/a\n5:memory:/a\n"}


def cpu_v2(**quotas: str) -> dict[str, str]:
    """The CPU quotas of the root cgroup, of its child `a` and of the process's own cgroup `a/b`."""
    folders = {"root": "", "a": "a/", "b": "a/b/"}
    return V2 | {f"sys/fs/cgroup/{folders[name]}cpu.max": f"{quota}\n" for name, quota in quotas.items()}


def cpu_v1(quota: str) -> dict[str, str]:
    folder = "sys/fs/cgroup/cpu/a"
    return {**V1, f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (cpu_v2(b="150000 100000"), 1),
        (cpu_v2(a="50000 100000", b="max 100000"), 1),
        (cpu_v2(root="100000 100000"), 1),
        (cpu_v1("100000"), 1),
        (cpu_v2(a="400000 100000", b="350000 100000"), 3),
        (cpu_v2(a="150000 50000", b="max 100000"), 3),
        (cpu_v1("399999"), 3),
    ],
)
def test_the_cpu_quotas_of_all_parent_cgroups_limit_the_cores_rounded_down(
    tmp_path: Path, files: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded down: threads that wait for each other would all stall while the quota of one is used up."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert detect({}, write_files(tmp_path, files)).cpu_count == cores


@pytest.mark.parametrize(
    "files",
    [
        {
            **V2,
            "sys/fs/cgroup/a/b/memory.max": str(4 * GIB),
            "sys/fs/cgroup/a/b/memory.current": str(2 * GIB),
            "sys/fs/cgroup/a/b/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        },
        {
            **V1,
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB),
        },
    ],
)
def test_available_memory_is_the_cgroup_limit_minus_used_memory(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert detect({}, write_files(tmp_path, files)).memory_available_bytes == 3 * GIB


def test_a_gpu_with_mig_slices_is_listed_as_its_slices() -> None:
    assert parse_listing(H200) == (("NVIDIA H200", "GPU-11aa"), ("NVIDIA H200", "GPU-22bb"))
    assert parse_listing(SLICED) == (("MIG 3g.40gb", "MIG-a"), ("MIG 1g.10gb", "MIG-b"))
    assert parse_listing("No devices were found\n") == ()


@pytest.fixture
def gpu_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, an `nvidia-smi` that lists them, and a torch that can use them."""
    tools = tmp_path / "tools"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<END\n{H200}END\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(machine_module, "_SMI_TIMEOUT_S", 200.0)
    torch = tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("raise RuntimeError('torch must not be imported')\n")
    (torch / "version.py").write_text("__version__ = '2'\ncuda: Optional[str] = '13.0'\n")
    monkeypatch.syspath_prepend(str(torch.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # other tests may have imported the real one
    return write_files(tmp_path / "root", {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""})


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 2),
        ("", 0),
        ("-1", 0),
        ("1", 1),
        ("0,1", 2),
        ("0,7,1", 1),
        ("GPU-22", 1),
    ],
)
def test_cuda_visible_devices_selects_gpus(gpu_root: Path, visible: str | None, count: int) -> None:
    machine = detect({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, gpu_root)
    assert machine.gpu_count == count
    assert machine.gpu_names == ("NVIDIA H200",) * count
    assert machine.note == ""


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        (None, "MIG 3g.40gb"),
        ("MIG-b", "MIG 1g.10gb"),
        ("MIG-b,MIG-a", "MIG 1g.10gb"),
        ("0,1", "MIG 3g.40gb"),
    ],
)
def test_a_process_sees_one_slice_of_a_gpu(gpu_root: Path, visible: str | None, name: str) -> None:
    (gpu_root.parent / "tools" / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<END\n{SLICED}END\n")
    machine = detect({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, gpu_root)
    assert machine.gpu_names == (name,)


@pytest.mark.parametrize(("visible", "count"), [("GPU-22", 1), ("GPU-22,GPU-11", 2), ("none", 0), ("1", 1)])
def test_gpus_are_selected_without_nvidia_smi(gpu_root: Path, visible: str, count: int) -> None:
    (gpu_root.parent / "tools" / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    assert detect({"CUDA_VISIBLE_DEVICES": visible}, gpu_root).gpu_count == count


def test_gpus_that_torch_cannot_use_are_reported_but_not_counted(gpu_root: Path) -> None:
    version = gpu_root.parent / "site" / "torch" / "version.py"
    version.write_text("__version__ = '2+cpu'\ncuda: Optional[str] = None\n")
    machine = detect({}, gpu_root)
    assert machine.gpu_count == 0
    assert machine.note == (
        "2 GPUs are not used: the installed torch is a CPU build; run make install TORCH=cuda, or build the image with"
        " --build-arg TORCH=cuda"
    )
    assert detect({"CUDA_VISIBLE_DEVICES": "0"}, gpu_root).note.startswith("1 GPU is not used: ")


@pytest.mark.parametrize(("visible", "noted"), [(None, True), ("0", True), ("", False), ("-1", False)])
def test_a_torch_for_gpus_without_a_gpu_is_reported(gpu_root: Path, visible: str | None, noted: bool) -> None:
    for device in (gpu_root / "dev").glob("nvidia*"):
        device.unlink()
    note = detect({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, gpu_root).note
    assert note == noted * (
        "no GPU was found, although the installed torch is a CUDA build: the model is served on the CPU; in Docker, add"
        " --gpus all"
    )
