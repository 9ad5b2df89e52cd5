"""Combinations of options for the property tests of the scheduler."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engines.core import SchedulerSettings

POLICIES = ("fcfs", "priority", "fair")


@dataclass(frozen=True, slots=True)
class Combination:
    """Values of the options that determine what the scheduler does."""

    admission: str
    paged: bool
    prefix_caching: bool
    scheduling_policy: str
    chunked_prefill: bool
    windowed: bool = False
    """The model has a sliding window."""

    def __str__(self) -> str:
        return (
            f"{self.admission} {'paged' if self.paged else 'contiguous'}{' cached' if self.prefix_caching else ''} "
            f"{self.scheduling_policy} {'overlay' if self.chunked_prefill else 'pause'}"
            f"{' windowed' if self.windowed else ''}"
        )


def combinations() -> list[Combination]:
    caches = [(True, True), (True, False), (False, False)]
    admissions = ("max_utilization", "guaranteed_no_evict", "static_batch")
    windowed = [
        Combination(admission, True, prefix_caching, "fcfs", chunked, windowed=True)
        for admission in admissions
        for prefix_caching in (True, False)
        for chunked in (True, False)
    ]
    return windowed + [
        Combination(admission, paged, prefix_caching, policy, chunked)
        for admission in admissions
        for paged, prefix_caching in caches
        if paged or admission != "max_utilization"
        for policy in POLICIES
        for chunked in (True, False)
    ]


def random_settings(rng: random.Random, combination: Combination, largest_chunk: int) -> SchedulerSettings:
    """Return small limits, so that all of them are reached often."""
    return SchedulerSettings(
        max_num_seqs=rng.randint(1, 8),
        max_prefill_tokens=rng.randint(1, largest_chunk),
        max_num_batched_tokens=rng.randint(1, rng.choice((8, 50))),
        max_waiting=rng.randint(1, 12),
        max_queued_tokens=rng.randint(10, 200) if rng.random() < 0.3 else None,
        scheduling_policy=combination.scheduling_policy,
        chunked_prefill=combination.chunked_prefill,
        waiting_served_ratio=rng.choice((0.0, 0.3, 2.0)),
        max_waiting_tokens=rng.randint(0, 12),
        waiting_steps=rng.choice((0, 0, 3)),
    )
