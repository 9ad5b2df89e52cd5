"""Combinations of options for the property tests of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


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
        for policy in ("fcfs", "priority", "fair")
        for chunked in (True, False)
    ]
