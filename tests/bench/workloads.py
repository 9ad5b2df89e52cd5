"""The workloads: four shapes of load, with exact token counts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from container.measure.bench.lengths import Lengths
from container.measure.bench.workload import BenchRequest, Workload, make_requests

_LENGTHS_SEED = 1234
"""Drawn lengths are the same in each round: a long answer drawn last would change the tokens/s."""
_WARM_UP_SEED = 1_000_003
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One workload."""

    name: str
    prompt_tokens: int
    output_tokens: int
    """Of each answer; the mean where they are drawn."""
    num_requests: int
    num_users: int
    output_lengths: Lengths = Lengths.FIXED

    def requests(self, tokenizer: Tokenizer, seed: int) -> tuple[BenchRequest, ...]:
        """The same ones for the same seed; another seed changes the prompts, never a length."""
        workload = Workload(self.prompt_tokens, self.output_tokens, self.num_requests, self.num_users, seed)
        drawn = self.output_lengths.output_tokens(
            self.output_tokens, self.num_requests, random.Random(_LENGTHS_SEED)
        )
        return tuple(
            replace(request, output_tokens=count)
            for request, count in zip(make_requests(workload, tokenizer), drawn, strict=True)
        )

    def warm_up(self) -> Shape:
        """One short request for each user."""
        tokens = min(self.output_tokens, _WARM_UP_TOKENS)
        return replace(self, output_tokens=tokens, num_requests=self.num_users, output_lengths=Lengths.FIXED)

    def describe(self) -> str:
        out = f"{self.output_tokens}"
        if self.output_lengths is Lengths.SPREAD:
            out = f"exponential, mean {self.output_tokens}, at most {4 * self.output_tokens}"
        return f"{self.prompt_tokens} tokens in, {out} out, {self.num_requests} requests, {self.num_users} at a time"


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("s1", 32, 128, 64, 32),
        Shape("s2", 256, 32, 64, 32),
        Shape("burst", 128, 64, 64, 64, Lengths.SPREAD),
        Shape("single", 32, 128, 3, 1),
        Shape("smoke", 8, 4, 3, 2),
    )
}
DEFAULT = tuple(name for name in SHAPES if name != "smoke")
"""`smoke` shows that everything works; its figures mean nothing."""


def warm_up_seed(seed: int) -> int:
    """No prompt of a warm-up comes again."""
    return seed + _WARM_UP_SEED
