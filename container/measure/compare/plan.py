"""What is run, and in which order: scenarios, rounds, and how long a server stays up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from container.measure.bench.lengths import Lengths
from container.measure.bench.workload import Workload

_WARM_UP_REQUESTS = 8
_WARM_UP_TOKENS = 16
_WARM_UP_SEED = 1_000_003
"""Added to the seed, so that no prompt of a warm-up comes again in a round."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One shape of requests."""

    name: str
    prompt_tokens: int
    """Mean of a prompt."""
    output_tokens: int
    """Mean of an answer."""
    num_requests: int
    num_users: int
    """Requests in flight: each user sends the next one when the last is answered."""
    lengths: Lengths = Lengths.FIXED

    def workload(self, seed: int) -> Workload:
        """The requests of one round. Raises `BenchError`."""
        return Workload(
            self.prompt_tokens, self.output_tokens, self.num_requests, self.num_users, seed, self.lengths
        )

    def warm_up(self) -> Scenario:
        """A few requests with prompts of such lengths and short answers."""
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
    """For one request."""

    def round_seed(self, number: int) -> int:
        """The same for every configuration, another one for each round."""
        return self.seed + number

    def warm_up_seed(self, number: int) -> int:
        return self.seed + _WARM_UP_SEED + number


@dataclass(frozen=True, slots=True)
class Stay:
    """One server's life: a configuration, and the rounds that it serves before it is stopped."""

    configuration: str
    rounds: tuple[int, ...]


def stays(arms: Sequence[str], num_rounds: int) -> tuple[Stay, ...]:
    """A B C, C B A, A B C, ...: slow changes of the machine affect all configurations alike.

    The last one of a round is the first of the next, so its server stays up.
    """
    found: list[Stay] = []
    for number in range(1, num_rounds + 1):
        for arm in arms if number % 2 else tuple(reversed(arms)):
            if found and found[-1].configuration == arm:
                found[-1] = Stay(arm, (*found[-1].rounds, number))
            else:
                found.append(Stay(arm, (number,)))
    return tuple(found)
