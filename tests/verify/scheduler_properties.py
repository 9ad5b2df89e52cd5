"""100,000 random scheduler steps per combination, 1,000,000 allocator operations; planted bugs are found.

`tests/engines/mpi/scheduler/property_steps.py` drives the scheduler, its allocators and a model without
tensors. Arrivals, aborts, failures, deadlines, changed limits, tenants, priorities and shared prompts are
random, and the pools are so small that preemptions are frequent. Every step is followed by checks of budgets,
blocks, the order of admission and starvation. Every request must end once, with exactly the tokens that it gets
alone. `allocator_operations.py` compares the allocators with a naive record of the same operations.
"""

from __future__ import annotations

from tests.verify.commands import last_line, run_python, run_tests
from tests.verify.lab import Lab, Report, run_alone

_PLANTED = (
    "tests/engines/mpi/scheduler/test_property_steps.py",
    "tests/engines/mpi/cache/test_allocator_operations.py",
)


def verify(lab: Lab, report: Report) -> None:
    steps = run_python("-m", "tests.engines.mpi.scheduler.property_steps", "--steps", "100000", "--jobs", "2")
    report.require(steps.returncode == 0, f"scheduler: exit code {steps.returncode}; {last_line(steps)}")
    blocks = run_python("-m", "tests.engines.mpi.cache.allocator_operations", "--operations", "1000000")
    report.require(blocks.returncode == 0, f"allocators: exit code {blocks.returncode}; {last_line(blocks)}")
    run_tests(report, "every planted bug is found", *_PLANTED)


if __name__ == "__main__":
    run_alone(verify)
