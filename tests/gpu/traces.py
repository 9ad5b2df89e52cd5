"""Sets of requests to compare engines with: random token ids, and lengths that are the same every time."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trace:
    prompts: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    """Number of tokens that each request generates. No token ends a request earlier."""

    @property
    def num_input_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return sum(self.outputs)

    @property
    def longest(self) -> int:
        return max(len(prompt) + count for prompt, count in zip(self.prompts, self.outputs, strict=True))

    def first(self, count: int) -> Trace:
        """Return the first `count` requests."""
        return Trace(self.prompts[:count], self.outputs[:count])


def w6() -> Trace:
    """Return nano-vLLM's benchmark: 256 requests, prompts and outputs of 100 to 1024 tokens, seed 0."""
    rng = random.Random(0)
    prompts = [tuple(rng.randint(0, 10000) for _ in range(rng.randint(100, 1024))) for _ in range(256)]
    return Trace(tuple(prompts), tuple(rng.randint(100, 1024) for _ in range(256)))


def w3(count: int, cap: int, vocab_size: int, prompt_tokens: int = 512, mean: float = 128.0) -> Trace:
    """Return prompts of one length, with exponential output lengths that are resampled while they exceed `cap`."""
    rng = random.Random(0)
    outputs = []
    for _ in range(count):
        length = cap + 1.0
        while length > cap:
            length = rng.expovariate(1 / mean)
        outputs.append(max(1, round(length)))
    prompts = [tuple(rng.randrange(vocab_size) for _ in range(prompt_tokens)) for _ in range(count)]
    return Trace(tuple(prompts), tuple(outputs))


def uniform(count: int, prompt_tokens: int, output_tokens: int, vocab_size: int) -> Trace:
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(vocab_size) for _ in range(prompt_tokens)) for _ in range(count)]
    return Trace(tuple(prompts), (output_tokens,) * count)


def tiny(vocab_size: int) -> Trace:
    """Return the requests of a smoke run."""
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(vocab_size) for _ in range(length)) for length in (5, 9)]
    return Trace(tuple(prompts), (2, 1))
