"""Tests of kernels and engine pass on each instruction set that this processor's libraries can be held to.

The tests of `tests/kernels` and `tests/engines` run in child processes with these variables. FBGEMM ignores the
variables, and so does MKL on some processors; the first line of the output shows the instruction set that torch
selects by default.
"""

from __future__ import annotations

import torch

from lmi_kernels.cpu.library import INSTRUCTIONS, Library, library_path
from tests.support.cpu_flags import instruction_sets
from tests.verify.commands import run_tests
from tests.verify.lab import Lab, Report, run_alone

_TORCH = {"LMI_CPU_KERNELS": "torch"}
_SETTINGS = (
    {**_TORCH, "ATEN_CPU_CAPABILITY": "avx2"},
    {**_TORCH, "ATEN_CPU_CAPABILITY": "default"},
    {**_TORCH, "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
)
"""Settings besides the native kernels' instruction sets, of which all that this processor has are tested."""
_TESTS = (
    "tests/kernels",
    "tests/engines",
    "--ignore=tests/kernels/triton",
    "--ignore=tests/engines/mpi/triton",
)


def verify(lab: Lab, report: Report) -> None:
    report.figure(
        f"this processor's instruction set, according to torch: {torch.backends.cpu.get_cpu_capability()}"
    )
    native = _native_settings()
    names = [setting["LMI_CPU_KERNELS"] for setting in native]
    report.require(names == instruction_sets(), f"native kernels support {', '.join(names)}")
    for setting in (*_SETTINGS, *native):
        name = ", ".join(f"{variable}={value}" for variable, value in setting.items())
        run_tests(report, name, *_TESTS, environment=setting)


def _native_settings() -> list[dict[str, str]]:
    path = library_path()
    found = []
    for name in INSTRUCTIONS if path is not None else ():
        try:
            Library(path, name)
        except ValueError:
            continue
        found.append({"LMI_CPU_KERNELS": name})
    return found


if __name__ == "__main__":
    run_alone(verify)
