"""engine=Python: greedy tokens of 32 prompts equal transformers', at batch sizes 1 and 8.

Like `token_equality.py`, but with one server per batch size: all 32 prompts at seeded random moments, half of them
streamed, EOS ignored. `lmi_batch_size` in `/metrics` must show that requests shared batches at batch size 8 but not
at 1.
"""

from __future__ import annotations

from tests.support.client import Client
from tests.support.metrics import batches
from tests.support.oracle import oracle
from tests.support.prompts import ALL
from tests.support.server import Server, properties_text
from tests.verify.lab import Lab, Report, run_alone
from tests.verify.token_equality import judge, send_at_random

_BATCH_SIZES = (1, 8)
_TIMEOUT_SECONDS = 900.0
"""The last request waits for all others."""


def verify(lab: Lab, report: Report) -> None:
    answers = [answer.ignoring_eos() for answer in oracle(lab.model, ALL)]
    report.require(len(answers) == 32, f"{len(answers)} prompts")
    for size in _BATCH_SIZES:
        text = properties_text(lab.model, "Python", dtype="fp32", batch_size=size)
        with Server(lab.folder / f"dynamic-equality-{size}", text) as server:
            client = Client(server.base_url, _TIMEOUT_SECONDS)
            outcomes = send_at_random(client, answers, seed=40 + size)
            judge(report, f"batch_size={size}, random arrivals", answers, outcomes)
            seen = batches(client.metrics())
            report.figure(f"{seen.requests:g} requests in {seen.count:g} batches")
            report.require(
                seen.requests == 32 and (seen.count == 32 if size == 1 else seen.count < 16),
                f"batch_size={size}: requests {'run alone' if size == 1 else 'share batches'}",
            )


if __name__ == "__main__":
    run_alone(verify)
