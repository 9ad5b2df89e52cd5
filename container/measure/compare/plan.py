"""The plan of a comparison: scenarios, rounds, what is compared with what, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from container.measure.bench.scenario import Scenario
from container.measure.bench.slo import Slo

_WARM_UP_SEED = 1_000_003
"""Added to the seed, so that no prompt of a warm-up occurs in a round."""
EARLY_STOP_FACTOR = 3
"""By which errors are made rarer where rounds go on until intervals are narrow; see `stopping.py`."""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When no more rounds are run."""

    precision: float | None
    """As soon as the intervals of tokens/s are at most so wide to each side, as a share; None: never for that."""
    max_rounds: int
    max_seconds: float = math.inf
    """No round starts after this time."""


@dataclass(frozen=True, slots=True)
class Part:
    """One cause of a gain: what configuration `name` has and `base` lacks."""

    cause: str
    name: str
    base: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole comparison. Rounds count from 1."""

    scenarios: tuple[Scenario, ...]
    num_rounds: int
    """Rounds of each configuration; with a stopping rule the least number at which precision is looked at."""
    seed: int
    dialect: str = "lmi"
    timeout_seconds: float = 600.0
    """Time limit of one request."""
    stopping: StoppingRule | None = None
    """None: after `num_rounds`."""
    parts: tuple[Part, ...] = ()
    """Parts of a gain. Each part's `base` is the next one's `name`."""
    further_pairs: tuple[tuple[str, str], ...] = ()
    """(name, base) of other ratios that the report has besides those to the first configuration."""
    slo: Slo | None = None
    """Latency limits of a request, for goodput."""

    def round_seed(self, number: int) -> int:
        """Seed of a round, the same for all configurations."""
        return self.seed + number

    def warm_up_seed(self, number: int) -> int:
        return self.seed + _WARM_UP_SEED + number

    def num_error_shares(self, names: Sequence[str], num_measures: int) -> int:
        """Into how many shares the error probability of the report is divided: one for each interval, and more with
        early stopping.

        names: of all configurations, the baseline first; num_measures: of each pair in each scenario.
        """
        with_baseline = {(name, names[0]) for name in names[1:]}
        pairs = with_baseline.union(self.further_pairs, ((part.name, part.base) for part in self.parts))
        factor = EARLY_STOP_FACTOR if self.stopping and self.stopping.precision else 1
        return max(1, len(pairs)) * len(self.scenarios) * num_measures * factor


def in_turn(names: Sequence[str], number: int) -> tuple[str, ...]:
    """The order of round `number`: A B C, C B A, A B C, so that slow changes of the machine affect all alike.

    The last configuration of a round is the first of the next one, so its server keeps running.
    """
    return tuple(names) if number % 2 else tuple(reversed(names))
