"""docs/gpu-results.md: no target is marked as missed.

`python -m tests.gpu.report` writes the page from the results of `make gpu-check`, which runs on a GPU; this check
only reads the page. A target that was not measured passes, and is
printed as such.
"""

from __future__ import annotations

import re

from tests.gpu.targets import TARGETS
from tests.support.paths import REPO_ROOT
from tests.verify.lab import Lab, Report, run_alone


def verify(lab: Lab, report: Report) -> None:
    page = (REPO_ROOT / "docs/gpu-results.md").read_text(encoding="utf-8")
    for target in TARGETS.values():
        row = re.search(rf"^\| {re.escape(target.title)}[^|]*\|(.*)$", page, re.MULTILINE)
        report.require(row is not None, f"{target.title}: on the page")
        if row is not None:
            state = row[1].strip(" |")
            report.require("FAIL" not in state, f"{target.title}: {state}")


if __name__ == "__main__":
    run_alone(verify)
