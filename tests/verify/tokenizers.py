"""Ids, streamed texts and chats of 25 families' tokenizers are transformers'.

The tests of `tests/container/models/test_families.py` with 2,000 texts instead of 100: words of 20 scripts,
emoji, combining marks, runs of white space, and each tokenizer's special tokens within the text. The table is
`tests/support/tokenizer_families`. Each text is also streamed token by token, and so are random tokens.
"""

from __future__ import annotations

from tests.support.tokenizer_families import FAMILIES
from tests.verify.commands import FULL, run_tests
from tests.verify.lab import Lab, Report, run_alone

_TESTS = "tests/container/models/test_families.py"


def verify(lab: Lab, report: Report) -> None:
    printed = run_tests(report, "2,000 texts of many scripts each", _TESTS, environment=FULL)
    missing = [name for name in FAMILIES if f"[{name}]" not in printed]
    report.require(not missing, f"{len(FAMILIES)} families are tested{f', but {missing}' if missing else ''}")


if __name__ == "__main__":
    run_alone(verify)
