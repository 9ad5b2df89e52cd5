"""Workloads of the benchmark, with exact token counts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from container.measure.bench.lengths import Exponential, Fixed, Lengths, RecordedLengths
from container.measure.bench.workload import BenchRequest, Workload, make_requests

_LENGTHS_SEED = 1234
"""Lengths are the same in each round, since a long response at the end would change the tokens/s."""
_WARM_UP_SEED = 1_000_003
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload."""

    name: str
    prompt_tokens: int
    outputs: Lengths
    """Numbers of output tokens."""
    num_requests: int
    num_users: int

    def requests(self, tokenizer: Tokenizer, seed: int) -> tuple[BenchRequest, ...]:
        """Return the requests of a seed. Another seed changes the prompts but no length."""
        drawn = self.outputs.draw(self.num_requests, random.Random(_LENGTHS_SEED))
        workload = Workload(Fixed(self.prompt_tokens), RecordedLengths(tuple(drawn)), self.num_requests)
        return make_requests(workload, tokenizer, seed)

    def warm_up(self) -> Shape:
        """Return the warm-up: one short request for each user."""
        tokens = min(round(self.outputs.mean), _WARM_UP_TOKENS)
        return replace(self, outputs=Fixed(tokens), num_requests=self.num_users)

    def describe(self) -> str:
        outputs = self.outputs.describe("out")
        return f"{self.prompt_tokens} tokens in, {outputs}, {self.num_requests} requests, {self.num_users} at a time"


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("s1", 32, Fixed(128), 64, 32),
        Shape("s2", 256, Fixed(32), 64, 32),
        Shape("burst", 128, Exponential(64, 256), 64, 64),
        Shape("single", 32, Fixed(128), 3, 1),
        Shape("smoke", 8, Fixed(4), 3, 2),
    )
}
DEFAULT = tuple(name for name in SHAPES if name != "smoke")
"""`smoke` only shows that the benchmark works; its figures mean nothing."""


def warm_up_seed(seed: int) -> int:
    """Return another seed, so that no prompt of a warm-up is repeated."""
    return seed + _WARM_UP_SEED
