"""Without a GPU: every Triton kernel equals its reference, planted errors are found, no kernel spills.

Runs the tests of `make kernels-check`. Each operation has a kernel, a reference in fp64, fresh random inputs and the
calls that serving makes (`tests/kernels/references`). Unwritten memory is NaN, and a kernel that accesses memory
outside its tensors is stopped. To plant an error, a part of a kernel's source is replaced. Only fp16 and fp32 are
tested, since the interpreter's bf16 products are wrong.

Then launchers are called with tensors that have the shapes of real models but no memory: Triton specializes as
usual and compiles for an absent GPU, and its ptxas counts registers, shared memory and spills. `make kernels-check`
compiles a few calls of each operation, this check all of them.
"""

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
