"""The plan of a comparison: scenarios, rounds and their order, and the pairs to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from container.measure.bench.scenario import Scenario
from container.measure.bench.slo import Slo

_SEEDS_PER_RUN = 1000
"""At least as many as a run has rounds, so that runs with different seeds share no prompts."""
_WARM_UP_SEED = 1_000_003
"""Added to the seed of a warm-up, so that none of its prompts occurs in a round."""
EARLY_STOP_FACTOR = 3
"""Divisor of the error probability when rounds go on until intervals are narrow; see `stopping.py`."""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Conditions under which no more rounds are run."""

    precision: float | None
    """Half-width of the tokens/s intervals, as a share, at which the comparison stops; None for no such limit."""
    max_rounds: int
    max_seconds: float = math.inf
    """Time after which no round starts."""


@dataclass(frozen=True, slots=True)
class Part:
    """One cause of a gain: the difference between configurations `name` and `base`."""

    cause: str
    name: str
    base: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a comparison measures. Rounds are numbered from 1."""

    scenarios: tuple[Scenario, ...]
    num_rounds: int
    """Rounds of each configuration. With a stopping rule, the minimum before precision is checked."""
    seed: int
    dialect: str = "lmi"
    timeout_seconds: float = 600.0
    """Time limit of one request."""
    stopping: StoppingRule | None = None
    """If None, the comparison stops after `num_rounds`."""
    parts: tuple[Part, ...] = ()
    """Parts of a gain. Each part's `base` is the next part's `name`."""
    further_pairs: tuple[tuple[str, str], ...] = ()
    """(name, base) of further ratios in the report, besides those to the first configuration."""
    slo: Slo | None = None
    """Latency limits of a request, for goodput."""

    def round_seed(self, number: int) -> int:
        """Return the seed of a round, which is the same for all configurations."""
        return self.seed * _SEEDS_PER_RUN + number

    def warm_up_seed(self, number: int) -> int:
        return self.round_seed(number) + _WARM_UP_SEED

    def num_error_shares(self, names: Sequence[str], num_measures: int) -> int:
        """Return the number of shares of the report's error probability: one per interval, more with early stopping.

        names: all configurations, the baseline first; num_measures: measures of each pair in each scenario.
        """
        with_baseline = {(name, names[0]) for name in names[1:]}
        pairs = with_baseline.union(self.further_pairs, ((part.name, part.base) for part in self.parts))
        factor = EARLY_STOP_FACTOR if self.stopping and self.stopping.precision else 1
        return max(1, len(pairs)) * len(self.scenarios) * num_measures * factor


def in_turn(names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the order of round `number`: A B C, C B A, A B C. Slow changes of the machine then affect all alike.

    The last configuration of a round is the first of the next one, so its server keeps running.
    """
    return tuple(names) if number % 2 else tuple(reversed(names))
