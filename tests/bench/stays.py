"""Order of the contenders, and how long each one keeps running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from container.measure.compare.plan import in_turn


@dataclass(frozen=True, slots=True)
class Stay:
    """One life of a contender and the rounds that it serves before it is stopped."""

    configuration: str
    rounds: tuple[int, ...]


def stays(configs: Sequence[str], num_rounds: int) -> tuple[Stay, ...]:
    """Return the order A B C, C B A, A B C, ... The last one of a round is the first of the next and keeps running."""
    found: list[Stay] = []
    for number in range(1, num_rounds + 1):
        for config in in_turn(configs, number):
            if found and found[-1].configuration == config:
                found[-1] = Stay(config, (*found[-1].rounds, number))
            else:
                found.append(Stay(config, (number,)))
    return tuple(found)
