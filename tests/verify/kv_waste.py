"""lmi kv-waste: pages of 16 tokens waste less than 4 % of the KV cache; contiguous allocation is shown beside.

Waste is 1 - tokens stored / slots allocated, as the mean over the steps. Prompts have 512 tokens, outputs a
mean of 128 and at most 512; lengths are seeded.
"""

from __future__ import annotations

import json

from tests.verify.commands import run_python
from tests.verify.lab import Lab, Report, run_alone


def verify(lab: Lab, report: Report) -> None:
    path = lab.folder / "kv-waste.json"
    done = run_python("-m", "container", "kv-waste", "--json", str(path))
    report.require(done.returncode == 0, f"exit code {done.returncode}")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    for result in results:
        report.figure(
            f"{result['allocation']}: waste {result['waste']:.1%}, {result['mean_running_loaded']:.0f} at once while "
            f"others wait, {result['preemptions']} preemptions"
        )
    paged = [result for result in results if "contiguous" not in result["allocation"]]
    report.require(len(results) == 3 and len(paged) == 2, "contiguous and both paged ways are in the table")
    worst = max(result["waste"] for result in paged)
    report.require(worst < 0.04, f"paged wastes {worst:.1%} at most")


if __name__ == "__main__":
    run_alone(verify)
