"""Sampling: transformers' processors to 1e-5, frequencies are probabilities, seeds decide alone.

Runs the sampler of both engines on the CPU, without a server or a model, and then its tests: random logits, batches
of mixed rows, 200,000 draws for each distribution.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from tests.support.sampling_oracle import (
    ALL_STEPS,
    CLOSE,
    apply,
    apply_temperature,
    call,
    deviation,
    is_unambiguous,
    processed,
    stages,
)
from tests.verify.commands import FULL, run_tests
from tests.verify.lab import Lab, Report, run_alone

NUM_BATCHES = 150
"""Number of batches of random rows. Each row goes through every step that it requests."""
MAX_ROWS = 24
NUM_STAGES = 10
"""Number of parameters that change logits or exclude tokens."""
VOCAB_SIZES = (50, 257, 1024, 5000, 49_152)
NUM_DRAWS = 200_000
"""Number of draws for each distribution."""
MIN_P_VALUE = 1e-4
"""Seeds are fixed, so the outcome is too. A correct sampler passes for a dozen distributions by a wide margin."""
CPU = torch.device("cpu")

_DISTRIBUTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.8},
    {"repetition_penalty": 1.5},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"logit_bias": ((1, 1.0), (2, -1.0)), "bad_words": ((4,), (3, 5)), "min_new_tokens": 9},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2},
)


def random_rows(rng: random.Random, vocab_size: int) -> list[SamplingRow]:
    """Return rows that each request some steps, most of them with typical values."""

    def sometimes(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.4 else off

    rows = []
    for i in range(rng.randint(1, MAX_ROWS)):
        ids = [rng.randrange(vocab_size) for _ in range(12)]
        words = [tuple(rng.choices(ids, k=rng.randint(1, 3))) for _ in range(6)]
        biases = {token: rng.uniform(-100, 100) for token in rng.choices(range(vocab_size), k=20)}
        params = SamplingParams(
            max_new_tokens=64,
            temperature=rng.choice([0.0, 1.0, rng.uniform(0.05, 5)]),
            top_k=sometimes(rng.choice([1, 5, 50, 1000, vocab_size, 2 * vocab_size]), 0),
            top_p=sometimes(rng.choice([1e-6, rng.random(), 0.9, 0.9999]), 1.0),
            min_p=sometimes(rng.choice([1e-4, rng.random(), 1.0]), 0.0),
            typical_p=sometimes(rng.choice([0.05, 0.9, 0.999]), 1.0),
            repetition_penalty=sometimes(rng.uniform(0.2, 5), 1.0),
            presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
            frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
            logit_bias=sometimes(tuple(biases.items()), ()),
            bad_words=sometimes(tuple(words), ()),
            min_new_tokens=sometimes(rng.randint(1, 40), 0),
            stop_token_ids=tuple(ids[:3]),
        )
        num_prompt, num_output = rng.randint(1, 60), rng.randint(0, 60)
        rows.append(SamplingRow(f"r{i}", params, rng.choices(ids, k=num_prompt + num_output), num_prompt))
    return rows


def random_logits(rng: random.Random, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Return peaked or flat logits. Some have many equal values, in some half of the tokens are excluded."""
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    logits = torch.randn(num_rows, vocab_size, generator=generator) * rng.choice([0.5, 3.0, 6.0])
    kind = rng.random()
    if kind < 0.2:
        return logits.mul_(4).round_().div_(4)
    if kind < 0.4:
        logits[torch.rand(num_rows, vocab_size, generator=generator) < 0.5] = -math.inf
        logits[:, -1] = 1.0
    return logits


def batches(rng: random.Random) -> Iterator[tuple[torch.Tensor, list[SamplingRow]]]:
    for number in range(NUM_BATCHES):
        vocab_size = VOCAB_SIZES[number % len(VOCAB_SIZES)]
        rows = random_rows(rng, vocab_size)[: 4 if vocab_size > 10_000 else MAX_ROWS]
        yield random_logits(rng, len(rows), vocab_size), rows


def compare_steps(report: Report, rng: random.Random) -> None:
    """Compare each step on transformers' result of the previous step, and all steps together."""
    worst: defaultdict[str, float] = defaultdict(float)
    times: Counter[str] = Counter()
    edges = unclear = 0
    for logits, rows in batches(rng):
        together = apply_temperature(apply(ALL_STEPS, logits, rows), rows)
        for own, result, row in zip(logits, together, rows, strict=True):
            scores = own
            for stage in stages(row):
                theirs = call(stage.processor, scores, row.token_ids)
                if stage.step is not None:
                    ours, edge = apply([stage.step], scores[None], [stage.row])[0], stage.edge(scores)
                    worst[stage.name] = max(worst[stage.name], deviation(ours, theirs, edge))
                    times[stage.name] += 1
                    edges += int(edge.sum())
                scores = theirs
            if not is_unambiguous(own, row):
                unclear += 1
                continue
            no_edges = torch.zeros_like(own, dtype=torch.bool)
            worst["all steps in order"] = max(
                worst["all steps in order"], deviation(result, scores, no_edges)
            )
            times["all steps in order"] += 1
    for name, largest in worst.items():
        report.require(
            largest <= CLOSE, f"{name}: largest deviation {largest:.1e} in {times[name]} random rows"
        )
    report.require(len(times) == NUM_STAGES + 1, f"{len(times) - 1} parameters were compared")
    report.figure(
        f"{edges} tokens were so close to an edge that rounding decides; {unclear} rows had such tokens"
    )


def p_value(counts: Counter[int], probabilities: torch.Tensor) -> float:
    """Return the p-value of a chi-square test (Wilson-Hilferty). Tokens expected fewer than 5 times share a cell."""
    expected = (probabilities * counts.total()).tolist()
    rare = [i for i, value in enumerate(expected) if 0 < value < 5]
    cells = [(counts[i], value) for i, value in enumerate(expected) if value >= 5]
    if rare:
        cells.append((sum(counts[i] for i in rare), sum(expected[i] for i in rare)))
    freedom = len(cells) - 1
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    part = 2 / (9 * freedom)
    return 0.5 * math.erfc(((statistic / freedom) ** (1 / 3) - (1 - part)) / math.sqrt(2 * part))


def draw_many(logits: torch.Tensor, params: SamplingParams, tokens: list[int]) -> Counter[int]:
    """Draw `NUM_DRAWS` tokens with different seeds. Every other draw is at a later position."""
    counts: Counter[int] = Counter()
    sampler = Sampler(len(logits), CPU)
    size = 10_000
    for start in range(0, NUM_DRAWS, size):
        rows = [
            SamplingRow(f"r{i}", replace(params, seed=i), tokens * (1 + i % 2), len(tokens) * (1 + i % 2) - 1)
            for i in range(start, start + size)
        ]
        counts.update(s.token_id for s in sampler.sample(logits.expand(size, -1), rows))
        for row in rows:
            sampler.forget(row.id)
    return counts


def compare_frequencies(report: Report, rng: random.Random) -> None:
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    logits, tokens = torch.randn(50, generator=generator) * 1.5, [7, 5, 3]
    plain = None
    for changes in _DISTRIBUTIONS:
        params = SamplingParams(64, **({"temperature": 1.0, "stop_token_ids": (0,)} | changes))
        counts = draw_many(logits, params, tokens)
        row = SamplingRow("x", params, tokens, len(tokens) - 1)
        probabilities = processed(logits, row).double().softmax(-1)
        impossible = sum(count for token, count in counts.items() if float(probabilities[token]) == 0.0)
        value = p_value(counts, probabilities)
        text = f"{changes or 'temperature 1'}: p = {value:.3f} over {NUM_DRAWS} draws"
        report.require(value > MIN_P_VALUE and not impossible, text)
        if plain is None:
            plain = counts
        elif "temperature" in changes and not impossible:
            ignored = p_value(plain, probabilities)
            report.require(ignored < 1e-12, f"{changes}: p = {ignored:.0e} when the parameters are ignored")


def verify(lab: Lab, report: Report) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compare_steps(report, random.Random(1))
        compare_frequencies(report, random.Random(3))
    finally:
        torch.set_num_threads(threads)
    tests = "tests/engines/sampling"
    run_tests(
        report, "log-probabilities, and bits in any batch and in a new process", tests, environment=FULL
    )


if __name__ == "__main__":
    run_alone(verify)
