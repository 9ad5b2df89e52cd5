"""Rolling batching: a newcomer joins within 3 steps; 32 at once give at least 4x the tokens of one.

16 streams of 400 tokens run. Five times a new request of 4 tokens is sent. `lmi_steps_total` is read just before
sending and when the first record has arrived. Both readings are taken between steps, so the difference may exceed
the steps inside the engine by up to two; the median of the five must be at most 3. Meanwhile each of the 16 streams
must have received tokens, and all must finish with all their tokens.

Throughput is measured with 32 different prompts of exactly 32 tokens (cut with the model's tokenizer), 128 tokens
out, EOS ignored, one request at a time and 32 at once. After a warm-up of both, the two alternate, so that slow
changes of the machine affect both alike. Figures are medians with minimum and maximum; the gain is the ratio of
medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from container.measure.bench.lengths import Fixed
from container.measure.bench.workload import Workload, load_tokenizer, make_requests
from tests.support.client import Client, ClientRequest, Ending, Outcome
from tests.support.metrics import RUNNING, STEPS, wait_metrics
from tests.verify.lab import Lab, Report, run_alone

NUM_STREAMS = 16
NUM_NEWCOMERS = 5
MAX_STEPS = 3
STREAM_TOKENS = 400
TOKENS_IN, TOKENS_OUT = 32, 128
CONCURRENCY = 32
MIN_GAIN = 4.0
ORDER = "ABBAABBA"
"""A is one request at a time, B is 32 concurrent requests."""
REQUESTS_ALONE = 3


def make_prompts(count: int, model: Path, seed: int) -> list[str]:
    """Return different texts of exactly `TOKENS_IN` tokens."""
    workload = Workload(Fixed(TOKENS_IN), Fixed(TOKENS_OUT), count)
    return [request.prompt for request in make_requests(workload, load_tokenizer(model), seed)]


class Streams:
    """Streaming requests, each in its own thread, with the tokens received so far."""

    def __init__(self, client: Client, prompts: Sequence[str], num_tokens: int) -> None:
        self.outcomes = [Outcome() for _ in prompts]
        self._client = client
        self._num_tokens = num_tokens
        self._pool = ThreadPoolExecutor(len(prompts))
        self._futures: list[Future[None]] = [
            self._pool.submit(self._run, prompt, outcome)
            for prompt, outcome in zip(prompts, self.outcomes, strict=True)
        ]

    def _run(self, prompt: str, outcome: Outcome) -> None:
        ask = ClientRequest(
            prompt, {"max_new_tokens": self._num_tokens, "ignore_eos_token": True}, stream=True
        )
        with self._client.call("POST", "/invocations", ask.body()) as call:
            for _ in self._client.follow(call, outcome):
                pass

    def counts(self) -> list[int]:
        return [len(outcome.token_ids) for outcome in self.outcomes]

    def wait_each(self, num_tokens: int, timeout: float) -> bool:
        """Wait until every stream has `num_tokens` tokens. Returns False on timeout."""
        deadline = time.monotonic() + timeout
        while min(self.counts()) < num_tokens and time.monotonic() < deadline:
            time.sleep(0.01)
        return min(self.counts()) >= num_tokens

    def finish(self) -> None:
        """Wait for all streams. Raises what the thread of a stream raised."""
        self._pool.shutdown()
        for future in self._futures:
            future.result()


def send_newcomer(client: Client, streams: Streams) -> tuple[int, bool]:
    """Send a short request. Returns the steps until its first token, and whether all streams went on meanwhile."""
    ask = ClientRequest("Hello", {"max_new_tokens": 4, "ignore_eos_token": True}, stream=True)
    before, counts = client.metrics(), streams.counts()
    outcome = Outcome()
    with client.call("POST", "/invocations", ask.body()) as call:
        records = client.follow(call, outcome)
        next(records)
        after = client.metrics()
        for _ in records:
            pass
    moved = all(now > then for now, then in zip(streams.counts(), counts, strict=True))
    return int(after[STEPS] - before[STEPS]), moved and after[RUNNING] > NUM_STREAMS


def verify_newcomer(lab: Lab, report: Report, client: Client) -> None:
    streams = Streams(client, make_prompts(NUM_STREAMS, lab.model, seed=1), STREAM_TOKENS)
    report.require(streams.wait_each(5, 60.0), f"{NUM_STREAMS} streams run, each with 5 tokens or more")
    running = client.metrics()[RUNNING]
    trials = [send_newcomer(client, streams) for _ in range(NUM_NEWCOMERS)]
    running_after = client.metrics()[RUNNING]
    streams.finish()
    report.require(
        running == running_after == NUM_STREAMS,
        f"{running:g} running before all new requests, {running_after:g} after",
    )
    steps = [count for count, _ in trials]
    report.require(
        all(moved for _, moved in trials), "while each new request was served, every stream got tokens"
    )
    # The counter is read between steps, before and after, so this is an upper bound.
    report.require(
        statistics.median(steps) <= MAX_STEPS,
        f"steps from sending to the first token: {steps}, median {statistics.median(steps):g}, limit {MAX_STEPS}",
    )
    endings = [outcome.ending for outcome in streams.outcomes]
    whole = all(count == STREAM_TOKENS for count in streams.counts())
    complete = whole and set(endings) == {Ending.COMPLETE}
    report.require(complete, f"all {NUM_STREAMS} streams complete with {STREAM_TOKENS} tokens")


def tokens_per_second(client: Client, prompts: Sequence[str], concurrency: int) -> float:
    """Return the output tokens per second over all requests, `concurrency` of them at a time."""

    def one(prompt: str) -> int:
        outcome = client.generate(prompt, max_new_tokens=TOKENS_OUT, ignore_eos_token=True)
        if len(outcome.token_ids) != TOKENS_OUT:
            raise AssertionError(f"expected {TOKENS_OUT} tokens: {outcome.describe()}")
        return len(outcome.token_ids)

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        total = sum(pool.map(one, prompts))
    return total / (time.perf_counter() - started)


def verify_throughput(lab: Lab, report: Report, client: Client) -> None:
    prompts = make_prompts(CONCURRENCY, lab.model, seed=2)
    configs = {"A": (prompts[:REQUESTS_ALONE], 1), "B": (prompts, CONCURRENCY)}
    for texts, concurrency in configs.values():
        tokens_per_second(client, texts[:concurrency], concurrency)  # warm-up
    rates: dict[str, list[float]] = {"A": [], "B": []}
    for config in ORDER:
        rates[config].append(tokens_per_second(client, *configs[config]))
    for config, name in (("A", "1"), ("B", str(CONCURRENCY))):
        seen = rates[config]
        spread = f"{min(seen):.1f} to {max(seen):.1f}"
        report.figure(
            f"concurrency {name}: median {statistics.median(seen):.1f} tokens/s ({spread}), n={len(seen)}"
        )
    gain = statistics.median(rates["B"]) / statistics.median(rates["A"])
    report.figure(f"order of runs {ORDER}, {TOKENS_IN} tokens in, {TOKENS_OUT} out, after one warm-up each")
    report.require(gain >= MIN_GAIN, f"gain {gain:.2f}, limit {MIN_GAIN:g}")


def verify(lab: Lab, report: Report) -> None:
    with lab.server("rolling", paged_attention=True, max_rolling_batch_size=CONCURRENCY) as server:
        verify_newcomer(lab, report, server.client)
        wait_metrics(server.client, lambda seen: seen.idle, 30.0)
        verify_throughput(lab, report, server.client)


if __name__ == "__main__":
    run_alone(verify)
