"""200 requests, a third of the clients disconnect: every other answer right, all blocks free or cached.

48 clients at a time send 200 seeded requests to a server whose batch holds 32, so some have to wait. Every third
client closes its connection: in the middle of a stream at a random record, or after a random time, possibly
before its request runs. Clients that have received their whole answer before disconnecting count as answered. All
complete answers must have exactly the tokens that the same prompt gave alone before. Afterwards `/metrics` must show
`lmi_kv_blocks_free + lmi_kv_blocks_cached == lmi_kv_blocks_total`, and no running or waiting requests.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.support.client import ClientRequest, Ending, Outcome
from tests.support.oracle import oracle
from tests.support.prompts import ALL
from tests.verify.lab import Lab, Report, require_idle, run_alone

NUM_REQUESTS = 200
NUM_CLIENTS = 48
"""Concurrent clients. The batch holds fewer, so some clients disconnect while they wait."""
SEED = 4
MIN_DISCONNECTED = 45
"""Fewer than the clients that are to disconnect, since some may get their whole response first."""


def make_asks(texts: list[str]) -> list[ClientRequest]:
    """Return seeded requests. Every third client disconnects, at a record of its stream or after some seconds."""
    rng = random.Random(SEED)
    asks = []
    for number in range(NUM_REQUESTS):
        text, max_new_tokens, stream = rng.choice(texts), rng.randint(8, 64), rng.random() < 0.5
        disconnect_after, disconnect_at_record = None, None
        if number % 3 == 0:
            if stream and rng.random() < 0.7:
                disconnect_at_record = rng.randint(1, max_new_tokens - 1)
            else:
                disconnect_after = rng.uniform(0.0, 2.0)
        parameters = {"max_new_tokens": max_new_tokens}
        asks.append(ClientRequest(text, parameters, stream, disconnect_after, disconnect_at_record))
    return asks


def is_right(ask: ClientRequest, outcome: Outcome, reference: Outcome) -> bool:
    """Check that a response is complete and equals the first tokens that the prompt gets alone."""
    expected = reference.token_ids[: ask.parameters["max_new_tokens"]]
    return outcome.ending is Ending.COMPLETE and outcome.token_ids == expected


def verify(lab: Lab, report: Report) -> None:
    texts = [answer.text for answer in oracle(lab.model, ALL)]
    asks = make_asks(texts)
    with lab.server("disconnects", paged_attention=True, max_rolling_batch_size=32) as server:
        client = server.client
        alone = {text: client.generate(text, max_new_tokens=64) for text in texts}
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            outcomes = list(pool.map(client.outcome, asks))
        pairs = list(zip(asks, outcomes, strict=True))
        disconnected = [(ask, out) for ask, out in pairs if out.ending is Ending.DISCONNECTED]
        stayed = [(ask, out) for ask, out in pairs if out.ending is not Ending.DISCONNECTED]
        how = Counter("streaming" if ask.stream else "whole" for ask, _ in disconnected)
        early = sum(not outcome.token_ids for _, outcome in disconnected)
        report.figure(f"disconnected: {dict(how)}, {early} of them before the first token")
        report.require(
            len(disconnected) >= MIN_DISCONNECTED,
            f"{len(disconnected)} of {NUM_REQUESTS} clients disconnected, at least {MIN_DISCONNECTED}",
        )
        wrong = [(ask, out) for ask, out in stayed if not is_right(ask, out, alone[ask.inputs])]
        report.require(not wrong, f"{len(stayed) - len(wrong)} of {len(stayed)} other responses are right")
        for ask, outcome in wrong[:5]:
            report.figure(f"{ask.parameters} {ask.inputs[:40]!r}: {outcome.describe()[:200]}")
        require_idle(report, client)


if __name__ == "__main__":
    run_alone(verify)
