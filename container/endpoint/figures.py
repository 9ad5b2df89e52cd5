"""Figures of an endpoint's variants, and verdicts on two variants that served the same load."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from container.measure.bench.figures import Spread
from container.measure.compare.interval import Ratio, ratio_of_rounds
from container.measure.compare.summary import LATENCY_P50
from container.measure.compare.verdict import in_words
from container.measure.numbers import seconds
from container.measure.output import Table

_KEPT = 100_000
"""Number of latest requests of a variant that are kept for percentiles."""
_MAX_ROUNDS = 20
_MIN_IN_ROUND = 5
"""Minimum mean number of requests per round, for the variant with fewer requests."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request that a container answered or failed to answer."""

    ended: float
    """Monotonic time."""
    seconds: float
    """Time from the start of the request to the last byte of the response."""
    first_byte: float | None
    """Seconds to the first byte of a stream; None if the response is not a stream."""
    status: int
    """HTTP status of the container's response; 0 if no complete one arrived in time or it was too large."""
    abandoned: bool = False
    """Whether the client left before the end of the response. Then `seconds` is not a latency."""

    @property
    def failed(self) -> bool:
        return self.status == 0 or self.status >= 400

    @property
    def server_failed(self) -> bool:
        """Whether the response was a 5xx or timed out. Alarms count these; a 4xx is the client's fault."""
        return self.status == 0 or self.status >= 500


class VariantFigures:
    """Counts the requests of one variant of one configuration. Thread-safe."""

    def __init__(self, endpoint: str, config: str, variant: str, shadow: bool) -> None:
        self.endpoint = endpoint
        self.config = config
        self.variant = variant
        self.shadow = shadow
        self._lock = threading.Lock()
        self._served: deque[ServedRequest] = deque(maxlen=_KEPT)
        self._num_requests = self._num_errors = self._num_dropped = 0

    @property
    def name(self) -> str:
        return f"{self.variant} ({self.config})"

    def record(self, request: ServedRequest) -> None:
        with self._lock:
            self._served.append(request)
            self._num_requests += 1
            self._num_errors += request.failed

    def record_dropped(self) -> None:
        """Count a copy that a busy shadow variant did not get."""
        with self._lock:
            self._num_dropped += 1

    def served(self) -> list[ServedRequest]:
        """Return the latest requests."""
        with self._lock:
            return list(self._served)

    def answered(self) -> list[ServedRequest]:
        """Return the latest requests that did not fail and were not abandoned."""
        return [request for request in self.served() if not (request.failed or request.abandoned)]

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON, with times in seconds."""
        answered = self.answered()
        first_bytes = [request.first_byte for request in answered if request.first_byte is not None]
        return {
            "endpoint": self.endpoint,
            "config": self.config,
            "variant": self.variant,
            "shadow": self.shadow,
            "requests": self._num_requests,
            "errors": self._num_errors,
            "dropped": self._num_dropped,
            "latency": Spread.of([request.seconds for request in answered]),
            "first_byte": Spread.of(first_bytes),
        }


def verdicts(figures: Sequence[VariantFigures]) -> list[str]:
    """Compare the median latencies of variants of one configuration, and of one variant before and after an update.

    Requests from the time in which both variants served are cut into rounds of equal size by the time they ended, so
    that both variants of a round ran at the same time. The statistics are those of `lmi compare`.
    """
    busy = [one for one in figures if one.answered()]
    pairs = [
        (a, b)
        for a, b in itertools.combinations(busy, 2)
        if a.endpoint == b.endpoint and (a.config == b.config or a.variant == b.variant)
    ]
    sentences = []
    for base, other in pairs:
        if ratio := _ratio(base, other, len(pairs)):
            sentence = in_words(ratio, other.name, base.name, LATENCY_P50)
            sentences.append(f"{base.endpoint}, {LATENCY_P50.title}: {sentence}.")
    return sentences


def _ratio(base: VariantFigures, other: VariantFigures, num_intervals: int) -> Ratio | None:
    """Return the median latency of `other` divided by that of `base`; None if no round has both."""
    sides = [base.answered(), other.answered()]
    first = max(min(one.ended for one in side) for side in sides)
    last = min(max(one.ended for one in side) for side in sides)
    sides = [[one for one in side if first <= one.ended <= last] for side in sides]
    fewest = min(len(side) for side in sides)
    if not fewest:
        return None
    num_rounds = max(1, min(_MAX_ROUNDS, fewest // _MIN_IN_ROUND))
    marked = sorted((one.ended, side, one.seconds) for side in (0, 1) for one in sides[side])
    size = math.ceil(len(marked) / num_rounds)
    ratios = []
    for start in range(0, len(marked), size):
        below, above = (
            Spread.of([took for _, which, took in marked[start : start + size] if which == side]).p50
            for side in (0, 1)
        )
        ratios.append(above / below)
    return ratio_of_rounds((ratio for ratio in ratios if not math.isnan(ratio)), num_intervals)


def table(figures: Sequence[VariantFigures]) -> Table:
    """Return a table with a row for each variant that got requests."""
    rows = []
    for one in figures:
        values = one.values()
        if values["requests"] or values["dropped"]:
            latency, kind = values["latency"], "shadow" if one.shadow else "production"
            counts = (str(values[key]) for key in ("requests", "errors", "dropped"))
            times = (seconds(value) for value in (latency.p50, latency.p90, latency.p99))
            rows.append((one.endpoint, one.name, kind, *counts, *times))
    header = ("endpoint", "variant", "kind", "requests", "errors", "dropped", "p50", "p90", "p99")
    return Table("requests by variant", header, tuple(rows), num_left=3)
