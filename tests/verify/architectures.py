"""The models that engine=MPI knows against transformers, on small random configurations in fp32."""

from __future__ import annotations

from tests.verify.commands import last_line, run_python
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 23
TITLE = "Llama, Mistral, Qwen2, Qwen3, Falcon, Mixtral: logits and greedy tokens are transformers', degrees 1 and 2"

_KINDS = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "falcon-7b", "falcon-40b")
_TESTS = {
    "degree 1, in chunks, paged and contiguous": "tests/engines/models/test_equality.py",
    "several ranks": "tests/engines/models/test_tensor_parallel.py",
    "random weights from config.json alone": "tests/engines/models/test_dummy_weights.py",
}


def verify(lab: Lab, report: Report) -> None:
    for what, tests in _TESTS.items():
        done = run_python("-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", "2", tests)
        report.require(done.returncode == 0, f"{what}: {last_line(done)}")
        missing = [kind for kind in _KINDS if f"[{kind}" not in done.stdout and f"-{kind}" not in done.stdout]
        report.require(
            not missing, f"{what}: every kind of model is tested{'' if not missing else f', but {missing}'}"
        )


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
