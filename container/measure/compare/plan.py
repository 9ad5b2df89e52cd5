"""The plan of a comparison: scenarios, rounds, and which server runs when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from container.measure.bench.scenario import Scenario

_WARM_UP_SEED = 1_000_003
"""Added to the seed, so that no prompt of a warm-up occurs in a round."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole comparison. Rounds count from 1."""

    scenarios: tuple[Scenario, ...]
    num_rounds: int
    seed: int
    dialect: str = "lmi"
    timeout_seconds: float = 600.0
    """Time limit of one request."""

    def round_seed(self, number: int) -> int:
        """Seed of a round, the same for all configurations."""
        return self.seed + number

    def warm_up_seed(self, number: int) -> int:
        return self.seed + _WARM_UP_SEED + number


@dataclass(frozen=True, slots=True)
class Stay:
    """The life of one server: a configuration and the rounds it serves before it is stopped."""

    configuration: str
    rounds: tuple[int, ...]


def stays(configs: Sequence[str], num_rounds: int) -> tuple[Stay, ...]:
    """A B C, C B A, A B C, ...: slow changes of the machine affect all configurations alike.

    The last configuration of a round is the first of the next one, so its server keeps running.
    """
    found: list[Stay] = []
    for number in range(1, num_rounds + 1):
        for config in configs if number % 2 else tuple(reversed(configs)):
            if found and found[-1].configuration == config:
                found[-1] = Stay(config, (*found[-1].rounds, number))
            else:
                found.append(Stay(config, (number,)))
    return tuple(found)
