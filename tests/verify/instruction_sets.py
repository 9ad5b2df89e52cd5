"""Kernels and engine on the instruction sets that torch and MKL can be held to, whatever this processor has."""

from __future__ import annotations

import torch

from tests.verify.commands import last_line, run_python
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 26
TITLE = (
    "Tests of kernels and engine pass on each instruction set that this processor's libraries can be held to"
)

_SETTINGS = (
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
)
_TESTS = (
    "tests/kernels",
    "tests/engines",
    "--ignore=tests/kernels/triton",
    "--ignore=tests/engines/mpi/triton",
)


def verify(lab: Lab, report: Report) -> None:
    report.figure(f"this processor, by torch: {torch.backends.cpu.get_cpu_capability()}")
    for setting in _SETTINGS:
        done = run_python(*("-m", "pytest", "-q", *_TESTS), environment={**setting, "OMP_NUM_THREADS": "1"})
        name, value = next(iter(setting.items()))
        report.require(done.returncode == 0, f"{name}={value}: {last_line(done)}")


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
