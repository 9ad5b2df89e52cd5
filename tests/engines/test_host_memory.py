"""Free memory within the limits of cgroups, on a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.host_memory import available_bytes, bytes_of

GIB = 1024**3


def _make_root(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:     8388608 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "gib"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"memory.max": "max", "memory.current": "5"}, 8),
        ("0::/a/b\n", {"a/memory.max": str(6 * GIB), "a/memory.current": str(4 * GIB)}, 2),
        (
            "0::/\n",
            {
                "memory.max": str(6 * GIB),
                "memory.current": str(4 * GIB),
                "memory.stat": f"anon 5\nactive_file {GIB}\ninactive_file {GIB}\nshmem 9\n",
            },
            4,
        ),
        (
            "5:cpu,memory:/gone\n",
            {
                "memory/memory.limit_in_bytes": str(2 * GIB),
                "memory/memory.usage_in_bytes": str(3 * GIB),
            },
            0,
        ),
        (
            "5:cpu,memory:/gone\n",
            {
                "memory/memory.limit_in_bytes": str(3 * GIB),
                "memory/memory.usage_in_bytes": str(3 * GIB),
                "memory/memory.stat": f"active_file 7\ntotal_active_file {GIB}\ntotal_inactive_file {GIB}\n",
            },
            2,
        ),
    ],
)
def test_free_memory_is_limited_by_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], gib: int
) -> None:
    assert available_bytes(_make_root(tmp_path, cgroup, files)) == gib * GIB


def test_a_field_of_proc_is_read_in_bytes_even_beside_a_name_in_another_encoding(tmp_path: Path) -> None:
    """A process may set its name to any bytes."""
    status = tmp_path / "status"
    status.write_bytes(b"Name:\t\xff\nVmHWM:\t      12 kB\n")
    assert bytes_of(status, "VmHWM") == 12 << 10
    assert bytes_of(status, "VmRSS") == 0
    assert bytes_of(tmp_path / "missing", "VmRSS") == 0
