"""16 streams run, one prompt of 2,000 tokens arrives: the worst gap is at least 3x smaller with chunked prefill.

Steps have 256 tokens; the two modes alternate, in five pairs. A gap is the time between two tokens of one stream
when they leave the engine.
"""

from __future__ import annotations

import random
import statistics
import time

from engines.core import AbortReason
from tests.support.core_lab import CoreLab, Mode, greedy
from tests.verify.lab import Lab, Report, run_alone

_STREAMS, _LONG, _BEFORE, _AFTER = 16, 2000, 8, 24
_ROUNDS = 5
_BUDGET = 256


def verify(lab: Lab, report: Report) -> None:
    core = CoreLab(
        lab.model, lab.folder, num_blocks=512, max_model_len=4096, max_step_tokens=_LONG + _STREAMS, threads=2
    )
    worst: dict[bool, list[float]] = {True: [], False: []}
    first: dict[bool, list[float]] = {True: [], False: []}
    for number in range(_ROUNDS):
        for chunked in (True, False) if number % 2 else (False, True):
            gap, ttft = _measure(core, chunked, number)
            worst[chunked].append(gap)
            first[chunked].append(ttft)
    ratios = [whole / chunked for chunked, whole in zip(worst[True], worst[False], strict=True)]
    for chunked, name in ((False, "whole prompts"), (True, "chunked prefill")):
        report.figure(
            f"{name}: worst gap between two tokens of a stream {_ms(worst[chunked])}; "
            f"first token of the long prompt after {_ms(first[chunked])}"
        )
    report.require(
        statistics.median(ratios) >= 3,
        f"the worst gap is {statistics.median(ratios):.1f}x smaller ({min(ratios):.1f} to {max(ratios):.1f}, "
        f"{_ROUNDS} pairs, steps of {_BUDGET} tokens)",
    )


def _measure(core: CoreLab, chunked: bool, seed: int) -> tuple[float, float]:
    """Return the streams' worst gap after the long prompt's arrival, and the TTFT of that prompt, in seconds."""
    rng = random.Random(seed)
    mode = Mode(
        prefix_caching=False,
        chunked_prefill=chunked,
        max_num_seqs=32,
        max_prefill_tokens=_BUDGET,
        max_num_batched_tokens=_BUDGET,
        more={"waiting_served_ratio": 0.0},
    )
    running = core.start(mode)
    for number in range(_STREAMS):
        prompt = [rng.randrange(49_000) for _ in range(32)]
        running.core.add(greedy(str(number), prompt, 10_000 // _STREAMS))
    seen: dict[str, float] = {}
    while len(seen) < _STREAMS:
        seen |= {output.id: time.perf_counter() for output in running.core.step()}
    for _ in range(_BEFORE):
        seen |= {output.id: time.perf_counter() for output in running.core.step()}
    running.core.add(greedy("long", [rng.randrange(49_000) for _ in range(_LONG)], _AFTER))
    arrived = time.perf_counter()
    worst = ttft = 0.0
    after = 0
    while after < _AFTER:
        outputs = running.core.step()
        now = time.perf_counter()
        for output in outputs:
            if output.error_kind:
                raise RuntimeError(f"{output.id}: {output.error_message}")
            if output.id == "long":
                after += 1
                ttft = ttft or now - arrived
            else:
                worst = max(worst, now - seen[output.id])
                seen[output.id] = now
    for request_id in running.core.request_ids():
        running.core.abort(request_id, AbortReason.SHUTDOWN)
    return worst, ttft


def _ms(values: list[float]) -> str:
    return f"{statistics.median(values) * 1000:.0f} ms ({min(values) * 1000:.0f} to {max(values) * 1000:.0f})"


if __name__ == "__main__":
    run_alone(verify)
