"""Property tests hold on many new random examples, and tests that take long pass.

`make test` uses few examples, the same each time. `LMI_TEST_EXAMPLES=full` uses four times as many, with new seeds,
and also runs the tests marked `long`, which `make test` skips. A failing test prints how to repeat it.
"""

from __future__ import annotations

from tests.verify.commands import FULL, run_tests
from tests.verify.lab import Lab, Report, run_alone


def verify(lab: Lab, report: Report) -> None:
    for tests in (
        ("-m", "hypothesis or long", "tests", "--ignore=tests/verify"),
        ("tests/kernels", "tests/engines/sampling"),
    ):
        run_tests(report, " ".join(tests), *tests, environment=FULL)


if __name__ == "__main__":
    run_alone(verify)
