"""Native CPU kernels: no address out of bounds, no undefined behaviour in their tests."""

from __future__ import annotations

import subprocess
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
    "-fsanitize=address,undefined",
    "-Wno-maybe-uninitialized",
)
_COMPILER = "g++"


def verify(lab: Lab, report: Report) -> None:
    library = lab.folder / "native-sanitized.so"
    sources = [str(path) for path in sorted(_SOURCES.glob("*.cpp"))]
    subprocess.run([_COMPILER, *_FLAGS, "-shared", *sources, "-o", str(library)], check=True)
    run_tests(
        *(report, "tests/kernels/cpu", "-x", "-p", "no:faulthandler", "tests/kernels/cpu"),
        environment={
            "LMI_TEST_NATIVE_LIBRARY": str(library),
            "LD_PRELOAD": f"{_runtime('libasan.so')} {_runtime('libubsan.so')}",
            # Python itself leaks memory.
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        },
    )


def _runtime(name: str) -> Path:
    command = [_COMPILER, f"-print-file-name={name}"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


if __name__ == "__main__":
    run_alone(verify)
