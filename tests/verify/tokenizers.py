"""Compare tokenizers and chat templates of published families with transformers, on 2,000 texts each."""

from __future__ import annotations

from tests.support.tokenizer_families import FAMILIES
from tests.verify.commands import last_line, run_python
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 33
TITLE = "Ids, streamed texts and chats of 25 families' tokenizers are transformers'"

_TESTS = "tests/container/models/test_families.py"
_FULL = {"LMI_TEST_EXAMPLES": "full", "OMP_NUM_THREADS": "1"}


def verify(lab: Lab, report: Report) -> None:
    done = run_python("-m", "pytest", "-v", "-p", "no:cacheprovider", _TESTS, environment=_FULL)
    report.require(done.returncode == 0, f"2,000 texts of many scripts each: {last_line(done)}")
    missing = [name for name in FAMILIES if f"[{name}]" not in done.stdout]
    report.require(not missing, f"{len(FAMILIES)} families are tested{f', but {missing}' if missing else ''}")


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
