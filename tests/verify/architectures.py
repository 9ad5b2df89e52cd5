"""Every architecture of engine=MPI: logits and greedy tokens are transformers', at degrees 1 to 3, on CPU and Triton.

The tests of `tests/engines/models`: odd head counts, chunks, paged and contiguous caches. Ranks are threads. `make
test` runs one configuration per architecture.
"""

from __future__ import annotations

import re

from tests.support.tiny_models import SHAPES
from tests.verify.commands import FULL, run_tests
from tests.verify.lab import Lab, Report, run_alone

_TESTS = {
    "degree 1, in chunks, paged and contiguous": ("tests/engines/models/test_equality.py", {}),
    "torch instead of native kernels": (
        "tests/engines/models/test_equality.py",
        {"LMI_CPU_KERNELS": "torch"},
    ),
    "several ranks": ("tests/engines/models/test_tensor_parallel.py", {}),
    "random weights from config.json alone": ("tests/engines/models/test_dummy_weights.py", {}),
    "Triton, in the interpreter": (
        "tests/engines/mpi/triton/test_gpu_steps.py::test_logits_are_those_of_transformers",
        {"TRITON_INTERPRET": "1"},
    ),
}


def verify(lab: Lab, report: Report) -> None:
    for name, (tests, environment) in _TESTS.items():
        printed = run_tests(report, name, "-n", "2", tests, environment=FULL | environment)
        missing = [kind for kind in SHAPES if not _is_tested(kind, printed)]
        report.require(
            not missing, f"{name}: every kind of model is tested{f', but {missing}' if missing else ''}"
        )


def _is_tested(kind: str, printed: str) -> bool:
    """Check whether the id of a comparison of logits has the name of a kind, or its short name (`gpt-neox`).

    Llamas are named `smollm2` in some of these tests.
    """
    short = "smollm2" if kind == "llama" else kind.removesuffix("_text").replace("_", "-")
    return re.search(rf"::test_\w*logits\w*\[(?:.*-)?(?:{kind}|{short})[]-]", printed) is not None


if __name__ == "__main__":
    run_alone(verify)
