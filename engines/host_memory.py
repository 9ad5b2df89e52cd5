"""Free main memory of this machine, within the limits of this process's cgroups. Does not import torch."""

from __future__ import annotations

import re
from pathlib import Path

_FILES = (
    ("memory.max", "memory.current", "(?:in)?active_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_(?:in)?active_file"),
)
"""Files with limit and usage, and the pattern of the page cache's names in `memory.stat`: cgroup v2, v1."""


def cgroup_folders(root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the folders of this process's cgroup and its parents, in cgroup v2 and v1. The limits of all apply.

    root: parent of /proc and /sys.
    """
    folders: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") if controllers else [""]:
            top = root / "sys/fs/cgroup" / controller
            group = top / path.lstrip("/")
            # In a container the path may be the host's and not exist here. Then the top is the container's own group.
            folders += [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return tuple(dict.fromkeys(folders))


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate; 0 if they are unknown. root: parent of /proc and /sys."""
    available = bytes_of(root / "proc/meminfo", "MemAvailable")
    for folder in cgroup_folders(root):
        for limit_file, usage_file, cache in _FILES:
            limit, usage = read_text(folder / limit_file), read_text(folder / usage_file)
            if limit.isdecimal() and usage.isdecimal():
                # As in MemAvailable, files in the page cache are free: the kernel drops them before memory runs out.
                found = re.findall(rf"^{cache} (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE)
                available = min(available, max(0, int(limit) - int(usage) + sum(map(int, found))))
    return available


def bytes_of(file: Path, field: str) -> int:
    """Return the value of a line such as `VmRSS: 12 kB` in a file of /proc, in bytes; 0 if it is missing."""
    match = re.search(rf"^{field}:\s+(\d+) kB", read_text(file), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def read_text(path: Path) -> str:
    """Return a small file's text without surrounding blanks; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
