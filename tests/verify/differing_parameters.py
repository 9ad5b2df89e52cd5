"""engine=Python: 120 requests with differing parameters, 10 of them bad: 10 errors, 110 right answers.

No two requests are alike: they differ in token counts, seeds, temperatures, top_k, top_p, repetition penalties, stop
strings, whether EOS is ignored, and streaming. The web process would refuse bad requests, so the model is changed
(`tests/support/poisoned_model.py`): five bad requests contain a token whose embedding is NaN, five a token that the
model has no embedding for. What each good request gets in a batch must equal what it gets alone afterwards: tokens,
text and finish reason.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.support.client import Client, Ending, Outcome
from tests.support.metrics import RESTARTS, batches
from tests.support.poisoned_model import BEYOND, NOT_A_NUMBER, poison
from tests.support.server import Server, properties_text
from tests.verify.lab import Lab, Report, run_alone

NUM_REQUESTS, NUM_BAD = 120, 10
_TIMEOUT_SECONDS = 900.0
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
class MixedRequest:
    """One request of the mix."""

    inputs: str
    parameters: dict[str, Any]
    stream: bool
    error: str = ""
    """Text that its error must contain. Empty for a good request."""

    def send(self, client: Client) -> Outcome:
        call = client.stream if self.stream else client.generate
        return call(self.inputs, **self.parameters)


def make_requests(seed: int) -> list[MixedRequest]:
    """Return the mix in random order."""
    rng = random.Random(seed)
    requests = []
    for number in range(NUM_REQUESTS):
        inputs, error = rng.choice(_PROMPTS), ""
        if number < NUM_BAD:
            token, error = ((NOT_A_NUMBER, "not finite"), (BEYOND, "token id"))[number % 2]
            inputs = f"{inputs}{token}{rng.choice(_PROMPTS)}"
        requests.append(MixedRequest(inputs, _parameters(rng, number), rng.random() < 0.5, error))
    rng.shuffle(requests)
    return requests


def _parameters(rng: random.Random, number: int) -> dict[str, Any]:
    """Return random parameters. No two requests have the same ones."""
    parameters: dict[str, Any] = {"max_new_tokens": rng.randint(1, 20), "seed": 1000 + number}
    if rng.random() < 0.6:
        parameters["temperature"] = rng.choice([0.3, 0.7, 1.0, 1.5])
        if rng.random() < 0.5:
            parameters["top_k"] = rng.randint(1, 60)
        if rng.random() < 0.5:
            parameters["top_p"] = rng.choice([0.5, 0.8, 0.95])
    if rng.random() < 0.3:
        parameters["repetition_penalty"] = rng.choice([1.1, 1.5, 2.0])
    if rng.random() < 0.3:
        parameters["stop_sequences"] = rng.sample([",", ".", " the", "\n", "and"], rng.randint(1, 3))
    if rng.random() < 0.3:
        parameters["ignore_eos_token"] = True
    return parameters


def judge(
    report: Report, requests: Sequence[MixedRequest], batched: Sequence[Outcome], alone: Sequence[Outcome]
) -> None:
    bad = [(request, seen) for request, seen in zip(requests, batched, strict=True) if request.error]
    right = [seen for request, seen in bad if seen.ending is Ending.ERROR and request.error in seen.error]
    report.require(
        len(right) == len(bad) == NUM_BAD, f"{len(right)} of {len(bad)} bad requests get their error"
    )
    for request, seen in bad:
        if seen not in right:
            report.figure(f"  expected {request.error!r}: {seen.describe()[:200]}")
    good = [triple for triple in zip(requests, batched, alone, strict=True) if not triple[0].error]
    wrong = [triple for triple in good if not _same(*triple[1:])]
    report.require(
        not wrong and len(good) == NUM_REQUESTS - NUM_BAD,
        f"{len(good) - len(wrong)} of {len(good)} good requests get the same response as alone",
    )
    for request, seen, expected in wrong:
        report.figure(
            f"  {request}: {seen.describe()[:150]} {seen.text!r}; alone {expected.describe()[:150]} {expected.text!r}"
        )


def _same(one: Outcome, other: Outcome) -> bool:
    if not one.ending is other.ending is Ending.COMPLETE:
        return False
    return (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)


def verify(lab: Lab, report: Report) -> None:
    requests = make_requests(seed=4)
    model = lab.folder / "poisoned-model"
    poison(lab.model, model)
    text = properties_text(model, "Python", batch_size=8, max_batch_delay=20)
    with Server(lab.folder / "differing-parameters", text) as server:
        client = Client(server.base_url, _TIMEOUT_SECONDS)
        with ThreadPoolExecutor(len(requests)) as pool:
            batched = list(pool.map(lambda request: request.send(client), requests))
        seen = batches(client.metrics())
        report.figure(f"{seen.requests:g} requests in {seen.count:g} batches")
        report.require(seen.requests == NUM_REQUESTS and seen.count <= 24, "the requests share batches")
        alone = [Outcome() if request.error else request.send(client) for request in requests]
        after = batches(client.metrics()).since(seen)
        report.require(after.count == after.requests == NUM_REQUESTS - NUM_BAD, "afterwards each runs alone")
        judge(report, requests, batched, alone)
        report.require(client.metrics()[RESTARTS] == 0, "the generating process was not restarted")


if __name__ == "__main__":
    run_alone(verify)
