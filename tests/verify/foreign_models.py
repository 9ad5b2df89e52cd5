"""Run modules of transformers on this engine's cache: logits against transformers, times against our own Llama."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.foreign_models import FOREIGN, degrees, differences, save_foreign
from tests.verify.foreign_cost import LIMIT, measure
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 34
TITLE = "Architectures without a file of our own: logits and tokens are transformers', degrees 1 to 3; in like time"


def verify(lab: Lab, report: Report) -> None:
    for name in FOREIGN:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            save_foreign(folder, name)
            for degree in degrees(folder):
                worst, same = differences(folder, degree)
                report.require(
                    worst < 1e-4 and same, f"{name}, degree {degree}: logits differ by at most {worst:.1e}"
                )
    own, foreign = measure(60)
    report.require(
        foreign <= LIMIT * own,
        f"a decode of Llama takes {foreign:.1f} ms as transformers' module, {own:.1f} ms as our own model;"
        f" limit {LIMIT} times",
    )


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
