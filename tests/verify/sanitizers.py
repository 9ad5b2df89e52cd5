"""Native CPU kernels: no address out of bounds, no undefined behaviour and no data race in their tests.

The kernels are built again with `-fsanitize=address,undefined`, then with `-fsanitize=thread`. The runtimes of g++
are loaded before Python. Buffers that kernels write are torch tensors, whose ends the address sanitizer knows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.paths import REPO_ROOT
from tests.verify.commands import run_tests
from tests.verify.lab import Lab, Report, run_alone

_SOURCES = REPO_ROOT / "kernels/lmi_kernels/cpu/native"
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-fPIC",
    "-pthread",
    "-Wno-maybe-uninitialized",
)
_COMPILER = "g++"


_IN_TORCH = "mutex:capsule_dealloc\n"
"""Suppressed reports of the thread sanitizer: torch destroys a mutex at exit before its last use."""


def verify(lab: Lab, report: Report) -> None:
    _run(
        lab,
        report,
        "address,undefined",
        ("libasan.so", "libubsan.so"),
        # Python itself leaks memory.
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"},
    )
    suppressions = lab.folder / "suppressions.txt"
    suppressions.write_text(_IN_TORCH)
    options = f"suppressions={suppressions}:report_thread_leaks=0:halt_on_error=1"
    # The threads of torch's OpenMP synchronize in ways that the sanitizer does not know.
    _run(lab, report, "thread", ("libtsan.so",), {"TSAN_OPTIONS": options, "OMP_NUM_THREADS": "1"})


def _run(
    lab: Lab, report: Report, sanitizers: str, runtimes: Sequence[str], environment: Mapping[str, str]
) -> None:
    library = lab.folder / f"native-{sanitizers}.so"
    sources = [str(path) for path in sorted(_SOURCES.glob("*.cpp"))]
    flags = (*_FLAGS, f"-fsanitize={sanitizers}", "-shared")
    subprocess.run([_COMPILER, *flags, *sources, "-o", str(library)], check=True)
    run_tests(
        *(report, f"tests/kernels/cpu, {sanitizers}", "-x", "-p", "no:faulthandler", "tests/kernels/cpu"),
        environment={
            "LMI_TEST_NATIVE_LIBRARY": str(library),
            "LD_PRELOAD": " ".join(str(_runtime(name)) for name in runtimes),
            **environment,
        },
    )


def _runtime(name: str) -> Path:
    command = [_COMPILER, f"-print-file-name={name}"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


if __name__ == "__main__":
    run_alone(verify)
