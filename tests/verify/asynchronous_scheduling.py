"""Random requests through the whole engine with a step in flight: each gets what it gets alone.

`tests/engines/mpi/property_engine.py` runs 5,000 random steps for every combination of policies through the step
loop, the scheduler, the GPU path and both samplers. The model has no weights: its logits are a function of the
tokens that it finds in the KV cache. References stand for the kernels that need a GPU. Sampling parameters are
random, some requests are beam searches, and steps fail at random. Tokens, log-probabilities and finish reasons must
be those of the request alone.
"""

from __future__ import annotations

from tests.verify.commands import last_line, run_python, run_tests
from tests.verify.lab import Lab, Report, run_alone


def verify(lab: Lab, report: Report) -> None:
    steps = run_python("-m", "tests.engines.mpi.property_engine", "--steps", "5000", "--jobs", "2")
    report.require(steps.returncode == 0, f"exit code {steps.returncode}; {last_line(steps)}")
    run_tests(report, "every planted bug is found", "tests/engines/mpi/test_property_engine.py")


if __name__ == "__main__":
    run_alone(verify)
