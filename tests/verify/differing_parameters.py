"""engine=Python: 120 requests, no two alike, share batches of 8; 10 of them are bad and fail where they are computed.

The bad ones pass every check at the door: five hold a token whose embedding is NaN, five one that the model does not
have (`tests/support/poisoned_model.py`). The others must get what each of them gets alone.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.client import Client, Ending, Outcome
from tests.support.dynamic_server import RESTARTS, batches, dynamic_properties
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.poisoned_model import BEYOND, NOT_A_NUMBER
from tests.support.server import Server
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 12
TITLE = "engine=Python: 120 requests with differing parameters, 10 of them bad: 10 errors, 110 right answers"

NUM_REQUESTS, NUM_BAD = 120, 10
_PATIENCE_SECONDS = 900.0
_PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small town by the sea,",
    "def fibonacci(n):\n",
    "1, 2, 3, 4,",
    "Water boils at",
    "The three largest cities of Japan are",
    "Dear Sir or Madam,\n\nI am writing to you because",
    "In 1969,",
    "A good soup needs",
    "Das Wetter in Berlin ist",
    "List of planets: Mercury, Venus,",
    "Q: Why is the sky blue?\nA:",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the mix."""

    inputs: str
    parameters: dict[str, Any]
    stream: bool
    told: str = ""
    """What its error must say; empty for a good one."""

    def send(self, client: Client) -> Outcome:
        ask = client.stream if self.stream else client.generate
        return ask(self.inputs, **self.parameters)


def make_requests(seed: int) -> list[Asked]:
    """The mix, in random order."""
    rng = random.Random(seed)
    asked = []
    for number in range(NUM_REQUESTS):
        inputs, told = rng.choice(_PROMPTS), ""
        if number < NUM_BAD:
            token, told = ((NOT_A_NUMBER, "not finite"), (BEYOND, "token id"))[number % 2]
            inputs = f"{inputs}{token}{rng.choice(_PROMPTS)}"
        asked.append(Asked(inputs, _parameters(rng, number), rng.random() < 0.5, told))
    rng.shuffle(asked)
    return asked


def _parameters(rng: random.Random, number: int) -> dict[str, Any]:
    """Any of the parameters, so that no two requests have the same."""
    chosen: dict[str, Any] = {"max_new_tokens": rng.randint(1, 20), "seed": 1000 + number}
    if rng.random() < 0.6:
        chosen["temperature"] = rng.choice([0.3, 0.7, 1.0, 1.5])
        if rng.random() < 0.5:
            chosen["top_k"] = rng.randint(1, 60)
        if rng.random() < 0.5:
            chosen["top_p"] = rng.choice([0.5, 0.8, 0.95])
    if rng.random() < 0.3:
        chosen["repetition_penalty"] = rng.choice([1.1, 1.5, 2.0])
    if rng.random() < 0.3:
        chosen["stop_sequences"] = rng.sample([",", ".", " the", "\n", "and"], rng.randint(1, 3))
    if rng.random() < 0.3:
        chosen["ignore_eos_token"] = True
    return chosen


def poisoned_model(lab: Lab) -> Path:
    target = lab.folder / "poisoned-model"
    command = [sys.executable, "-m", "tests.support.poisoned_model", str(lab.model), str(target)]
    subprocess.run(command, check=True, cwd=REPO_ROOT, env=child_environment())
    return target


def judge(
    report: Report, asked: Sequence[Asked], shared: Sequence[Outcome], alone: Sequence[Outcome]
) -> None:
    bad = [(a, s) for a, s in zip(asked, shared, strict=True) if a.told]
    told = [s for a, s in bad if s.ending is Ending.TOLD and a.told in s.error]
    report.require(
        len(told) == len(bad) == NUM_BAD, f"{len(told)} of {len(bad)} bad requests get their error"
    )
    for a, s in bad:
        if s not in told:
            report.figure(f"  expected {a.told!r}: {s.describe()[:200]}")
    good = [(a, s, o) for a, s, o in zip(asked, shared, alone, strict=True) if not a.told]
    wrong = [(a, s, o) for a, s, o in good if not _same(s, o)]
    report.require(
        not wrong and len(good) == NUM_REQUESTS - NUM_BAD,
        f"{len(good) - len(wrong)} of {len(good)} good requests get what they get alone",
    )
    for a, s, o in wrong:
        report.figure(f"  {a}: {s.describe()[:150]} {s.text!r}; alone {o.describe()[:150]} {o.text!r}")


def _same(one: Outcome, other: Outcome) -> bool:
    if not one.ending is other.ending is Ending.COMPLETE:
        return False
    return (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)


def verify(lab: Lab, report: Report) -> None:
    asked = make_requests(seed=4)
    text = dynamic_properties(poisoned_model(lab), batch_size=8, max_batch_delay=20)
    with Server(lab.folder / "differing-parameters", text) as server:
        server.wait_ready()
        client = Client(server.base_url, _PATIENCE_SECONDS)
        with ThreadPoolExecutor(len(asked)) as pool:
            shared = list(pool.map(lambda each: each.send(client), asked))
        seen = batches(client.metrics())
        report.figure(f"{seen.requests:g} requests in {seen.count:g} batches")
        report.require(seen.requests == NUM_REQUESTS and seen.count <= 24, "the requests share batches")
        alone = [Outcome() if each.told else each.send(client) for each in asked]
        after = batches(client.metrics()).since(seen)
        report.require(after.count == after.requests == NUM_REQUESTS - NUM_BAD, "then each goes alone")
        judge(report, asked, shared, alone)
        report.require(client.metrics()[RESTARTS] == 0, "the generating process lives")


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
