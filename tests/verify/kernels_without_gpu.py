"""Without a GPU: every Triton kernel equals its reference, planted errors are found, no kernel spills."""

from __future__ import annotations

import re
import time

from tests.verify.commands import last_line, run_python, run_tests
from tests.verify.lab import Lab, Report, run_alone

_TESTS = ("tests/kernels/triton", "tests/engines/mpi/triton", "tests/gpu/test_smoke.py")
_SECONDS = 360


def verify(lab: Lab, report: Report) -> None:
    started = time.monotonic()
    printed = run_tests(
        report, "in the interpreter", "-n", "2", *_TESTS, environment={"TRITON_INTERPRET": "1"}
    )
    interpreted = time.monotonic() - started
    passed = re.findall(r"PASSED (\S+)", printed)
    parity = sum("test_kernel_equals_its_reference" in name for name in passed)
    planted = sum("test_planted_error_is_caught" in name for name in passed)
    report.require(parity > 0, f"{parity} comparisons of a kernel with its reference, each on many inputs")
    report.require(planted > 0, f"{planted} planted errors, each caught")
    compiled = run_python(
        *("-m", "tests.kernels.triton.compile_ahead"),
        environment={"TRITON_CACHE_DIR": str(lab.folder / "triton")},
    )
    report.require(compiled.returncode == 0, f"for sm_80, sm_86, sm_90: {last_line(compiled)}")
    total = time.monotonic() - started
    report.require(
        total < _SECONDS,
        f"tests {interpreted:.0f} s, compilation {total - interpreted:.0f} s, together less than {_SECONDS} s",
    )


if __name__ == "__main__":
    run_alone(verify)
