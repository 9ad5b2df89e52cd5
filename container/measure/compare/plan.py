"""The plan of a comparison: scenarios, rounds, and which server runs when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from container.measure.bench.lengths import Lengths
from container.measure.bench.workload import Workload

_WARM_UP_REQUESTS = 8
_WARM_UP_TOKENS = 16
_WARM_UP_SEED = 1_000_003
"""Added to the seed, so that no prompt of a warm-up occurs in a round."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One shape of load."""

    name: str
    prompt_tokens: int
    """Mean prompt length."""
    output_tokens: int
    """Mean answer length."""
    num_requests: int
    num_users: int
    """Requests in flight: each user sends the next one when the last is answered."""
    lengths: Lengths = Lengths.FIXED

    def workload(self, seed: int) -> Workload:
        """The workload of one round. Raises BenchError."""
        return Workload(
            self.prompt_tokens, self.output_tokens, self.num_requests, self.num_users, seed, self.lengths
        )

    def warm_up(self) -> Scenario:
        """A few requests with the same prompt lengths and short answers."""
        count = min(_WARM_UP_REQUESTS, self.num_users, self.num_requests)
        tokens = min(_WARM_UP_TOKENS, self.output_tokens)
        return Scenario(f"{self.name}, warm-up", self.prompt_tokens, tokens, count, count, self.lengths)


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
