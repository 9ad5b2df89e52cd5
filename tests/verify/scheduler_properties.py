"""Random operations on scheduler and allocators, far more than the tests do, and the bugs that they must find."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import REPO_ROOT, child_environment
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 14
TITLE = (
    "100,000 random scheduler steps per combination, 1,000,000 allocator operations; planted bugs are found"
)

_PLANTED = ("tests/engines/mpi/test_property_steps.py", "tests/engines/mpi/test_allocator_operations.py")


def verify(lab: Lab, report: Report) -> None:
    steps = _run("-m", "tests.engines.mpi.property_steps", "--steps", "100000", "--jobs", "2")
    report.require(steps.returncode == 0, f"scheduler: exit code {steps.returncode}; {_last(steps)}")
    blocks = _run("-m", "tests.engines.mpi.allocator_operations", "--operations", "1000000")
    report.require(blocks.returncode == 0, f"allocators: exit code {blocks.returncode}; {_last(blocks)}")
    planted = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", *_PLANTED)
    report.require(planted.returncode == 0, f"every planted bug makes them fail: {_last(planted)}")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPO_ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, sep="\n", flush=True)
    return done


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
