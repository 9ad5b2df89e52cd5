"""Prefix cache: 90 % shared gives at least 5x lower TTFT; 0 % shared costs under 1 % of the step time.

576 of 640 prompt tokens are shared. Requests run one at a time, alternately with and without the cache. Without
shared prefixes, the cost of the cache is the time inside its methods, each call timed, divided by the time of all
steps.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from engines.mpi.cache.paged_blocks import PagedBlocks
from tests.support.core_lab import CoreLab, Mode, Running, greedy
from tests.verify.lab import Lab, Report, run_alone

_LENGTH, _SHARED = 640, 576
_PAIRS = 7
_METHODS = ("find", "hold", "add_full_pages", "share", "retain", "forget", "evict")
"""The methods that contain all work of the cache."""


def verify(lab: Lab, report: Report) -> None:
    core = CoreLab(lab.model, lab.folder, num_blocks=1024, threads=2)
    _shared(core, report)
    _nothing_shared(core, report)


def _shared(core: CoreLab, report: Report) -> None:
    """Compare TTFT with and without the cache, for one request after the other with the same first 90 %."""
    rng = random.Random(1)
    prefix = [rng.randrange(49_000) for _ in range(_SHARED)]

    def ttft(running: Running, number: int) -> float:
        rest = [rng.randrange(49_000) for _ in range(_LENGTH - _SHARED)]
        running.core.add(greedy(str(number), [*prefix, *rest], 2))
        started = time.perf_counter()
        first = 0.0
        while running.core.has_work:
            if running.core.step() and not first:
                first = time.perf_counter() - started
        return first

    with_cache, without = [], []
    cached = core.start(Mode(max_prefill_tokens=256, max_num_batched_tokens=256))
    ttft(cached, -1)  # the first request fills the cache
    for number in range(_PAIRS):
        plain = core.start(Mode(prefix_caching=False, max_prefill_tokens=256, max_num_batched_tokens=256))
        without.append(ttft(plain, number))
        # The other engine has overwritten the same memory. Compute the shared pages again, then measure.
        cached = core.start(Mode(max_prefill_tokens=256, max_num_batched_tokens=256))
        ttft(cached, -1)
        with_cache.append(ttft(cached, number))
    ratios = [slow / fast for slow, fast in zip(without, with_cache, strict=True)]
    report.figure(
        f"{_SHARED} of {_LENGTH} prompt tokens shared: without {statistics.median(without) * 1000:.0f} ms, "
        f"with {statistics.median(with_cache) * 1000:.0f} ms (medians of {_PAIRS})"
    )
    report.require(
        statistics.median(ratios) >= 5,
        f"TTFT is {statistics.median(ratios):.1f}x lower ({min(ratios):.1f} to {max(ratios):.1f})",
    )


def _nothing_shared(core: CoreLab, report: Report) -> None:
    rng = random.Random(2)
    running = core.start(Mode(max_num_seqs=16, max_prefill_tokens=256, max_num_batched_tokens=256))
    spent = _time_cache(running)
    for number in range(32):
        prompt = [rng.randrange(49_000) for _ in range(rng.randint(100, 300))]
        running.core.add(greedy(str(number), prompt, 24))
    started = time.perf_counter()
    steps = 0
    while running.core.has_work:
        running.core.step()
        steps += 1
    total = time.perf_counter() - started
    hits = running.scheduler.num_prefix_hit_tokens
    report.figure(
        f"{steps} steps in {total:.1f} s; {sum(spent.values()) * 1000:.2f} ms of it in the prefix cache: "
        + ", ".join(f"{name} {seconds * 1000:.2f}" for name, seconds in spent.items() if seconds)
    )
    report.require(hits == 0, f"{hits} tokens were found in the cache; nothing is shared")
    share = sum(spent.values()) / total
    report.require(share < 0.01, f"time in prefix-cache code is {share:.3%} of the steps' time")


def _time_cache(running: Running) -> dict[str, float]:
    """Count the seconds in each method of the prefix cache from now on, including the cost of the clock."""
    if not isinstance(running.blocks, PagedBlocks):
        raise TypeError("this engine has no prefix cache")
    spent = dict.fromkeys(_METHODS, 0.0)

    class Timed(type(running.blocks.prefix_cache)):  # type: ignore[misc]
        pass

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent[name] += time.perf_counter() - started

        return call

    for name in _METHODS:
        setattr(Timed, name, timed(name, getattr(type(running.blocks.prefix_cache), name)))
    running.blocks.prefix_cache.__class__ = Timed
    return spent


if __name__ == "__main__":
    run_alone(verify)
