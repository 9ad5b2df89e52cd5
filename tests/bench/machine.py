"""Description of the machine and its software, for the results of a benchmark."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from container.machine import describe, detect
from container.run import launch

_INSTRUCTION_SETS = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "sve"),
)


def described() -> dict[str, Any]:
    environ = launch.environment()
    return {
        "description": describe(detect(environ)),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": instruction_sets(Path("/proc/cpuinfo").read_text()),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def instruction_sets(cpuinfo: str) -> list[str]:
    """Return the known instruction sets of the first processor, in a fixed order."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return [name for name in _INSTRUCTION_SETS if name in flags]
