from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.random_stream import uniform
from engines.sampling.sampler import Sampled, Sampler
from tests.support.seeds import fresh_generator, generator_from, integers

VOCAB = 101
CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**31 - 1)

params = st.builds(
    SamplingParams,
    max_new_tokens=st.just(8),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, VOCAB, 1000]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    repetition_penalty=st.sampled_from([0.7, 1.0, 1.0, 1.3]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.booleans(),
)
rows = st.lists(
    st.tuples(params, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)), min_size=1, max_size=8
)


def _rows(drawn: list[tuple[SamplingParams, list[int]]]) -> list[SamplingRow]:
    return [SamplingRow(f"r{i}", p, tokens) for i, (p, tokens) in enumerate(drawn)]


def _logits(num_rows: int, seed: int, vocab_size: int = VOCAB) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=generator_from(seed)) * 4


def _alone(logits: torch.Tensor, row: SamplingRow) -> Sampled:
    (sampled,) = Sampler(logits.shape[-1], CPU).sample(logits[None], [row])
    return sampled


def _processed(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """One row through transformers' processors, in the order of `generate`."""
    p = row.params
    processors: list[Any] = []
    if p.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(p.repetition_penalty))
    if not p.greedy:
        processors.append(TemperatureLogitsWarper(p.temperature))
        processors += [TopKLogitsWarper(p.top_k)] if p.top_k else []
        processors += [TopPLogitsWarper(p.top_p)] if p.top_p < 1.0 else []
    scores: torch.Tensor = LogitsProcessorList(processors)(torch.tensor([row.token_ids]), logits[None])
    return scores[0]


@settings(max_examples=100, deadline=None)
@given(rows, SEEDS)
def test_a_row_gets_in_any_batch_what_it_gets_alone(
    drawn: list[tuple[SamplingParams, list[int]]], seed: int
) -> None:
    logits, batch = _logits(len(drawn), seed), _rows(drawn)
    before = logits.clone()
    together = Sampler(VOCAB, CPU).sample(logits, batch)
    assert torch.equal(logits, before)
    assert together == [_alone(logits[i], row) for i, row in enumerate(batch)]
    backwards = Sampler(VOCAB, CPU).sample(logits.flip(0), batch[::-1])
    assert together == backwards[::-1]


@settings(max_examples=100, deadline=None)
@given(rows, SEEDS)
def test_tokens_are_those_that_transformers_allows(
    drawn: list[tuple[SamplingParams, list[int]]], seed: int
) -> None:
    logits, batch = _logits(len(drawn), seed), _rows(drawn)
    for i, (row, sampled) in enumerate(zip(batch, Sampler(VOCAB, CPU).sample(logits, batch), strict=True)):
        scores = _processed(logits[i], row)
        assert sampled.finite
        if row.params.greedy:
            assert sampled.token_id == int(scores.argmax())
        else:
            assert float(scores[sampled.token_id]) > -math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_is_argmax(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 49152, generator=fresh_generator()).to(dtype)
    batch = [SamplingRow(f"r{i}", SamplingParams(1), (1, 2)) for i in range(9)]
    sampled = Sampler(49152, CPU).sample(logits, batch)
    assert [s.token_id for s in sampled] == logits.argmax(-1).tolist()
    assert all(s.finite and s.logprob is None for s in sampled)


def test_greedy_ignores_what_only_sampling_uses() -> None:
    logits = _logits(2, 0)
    odd = SamplingParams(1, top_k=3, top_p=0.1, seed=5)
    sampled = SamplingParams(1, temperature=1.0)
    both = Sampler(VOCAB, CPU).sample(logits, [SamplingRow("a", odd, (1,)), SamplingRow("b", sampled, (1,))])
    assert both[0].token_id == int(logits[0].argmax())


def _chi_square(counts: Counter[int], probabilities: torch.Tensor, draws: int) -> tuple[float, int]:
    """The statistic and its degrees of freedom; tokens expected fewer than 5 times are taken together."""
    expected = probabilities * draws
    rare = [i for i in range(len(expected)) if 0 < float(expected[i]) < 5]
    cells = [(counts[i], float(expected[i])) for i in range(len(expected)) if float(expected[i]) >= 5]
    if rare:
        cells.append((sum(counts[i] for i in rare), sum(float(expected[i]) for i in rare)))
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in cells), len(cells) - 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_p": 0.8},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.5},
    ],
)
@pytest.mark.parametrize("by", ["seed", "position"])
def test_frequencies_are_the_probabilities(changes: dict[str, Any], by: str) -> None:
    vocab_size, draws = 13, 12_000 if by == "seed" else 3_000
    logits = torch.randn(vocab_size, generator=generator_from(11)) * 1.5
    p = SamplingParams(1, **({"temperature": 1.0} | changes))
    seen = [3, 5, 3]
    if by == "seed":
        batch = [SamplingRow(f"r{i}", replace(p, seed=i), seen) for i in range(draws)]
    else:
        # One stream, ever longer sequences; the same three tokens again and again, so the penalty stays the same.
        longest = seen * (draws // 3 + 1)
        batch = [SamplingRow("r", replace(p, seed=99), longest[: 3 + i]) for i in range(draws)]
    sampled: list[Sampled] = []
    sampler = Sampler(vocab_size, CPU)
    for start in range(0, draws, 2000):
        part = batch[start : start + 2000]
        sampled += sampler.sample(logits.expand(len(part), -1), part)
    counts = Counter(s.token_id for s in sampled)
    probabilities = _processed(logits, SamplingRow("x", p, seen)).double().softmax(-1)
    assert all(float(probabilities[token]) > 0 for token in counts)
    statistic, freedom = _chi_square(counts, probabilities, draws)
    # Seeds are fixed, so nothing fails by chance; five deviations leave room for any honest stream.
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 1


@pytest.mark.parametrize("place", ["first", "last", "between"])
def test_tokens_without_probability_are_never_drawn(place: str) -> None:
    logits = torch.full((VOCAB,), -2000.0)  # exp underflows to 0, and yet the logits are finite
    likely = {"first": [99, 100], "last": [0, 1], "between": [0, 50, 100]}[place]
    logits[likely] = 1.0
    batch = [SamplingRow(f"r{i}", SamplingParams(1, temperature=1.0, seed=i), (i,)) for i in range(4000)]
    drawn = {s.token_id for s in Sampler(VOCAB, CPU).sample(logits.expand(4000, -1), batch)}
    assert drawn == set(likely)


def _seed_of(number: int, position: int) -> int:
    """The seed whose 64-bit output at `position` is `number`: SplitMix64 backwards."""

    def unmix(z: int) -> int:
        for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
            z ^= (z >> shift) ^ (z >> 2 * shift)
            z = z * pow(factor, -1, 2**64) % 2**64
        return z

    return unmix((unmix(number) - (position + 1) * 0x9E3779B97F4A7C15) % 2**64)


def test_the_ends_of_the_unit_interval_draw_possible_tokens() -> None:
    lowest, highest = _seed_of(0, 1), _seed_of(2**64 - 1, 1)
    assert uniform(lowest, 1) == 0.0
    assert uniform(highest, 1) == 1 - 2**-53
    logits = torch.full((2, VOCAB), -2000.0)
    logits[:, 3:7] = torch.tensor([0.1, 0.7, 1.3, 0.2])
    batch = [
        SamplingRow("r", SamplingParams(1, temperature=1.0, seed=seed), (1,)) for seed in (lowest, highest)
    ]
    assert [s.token_id for s in Sampler(VOCAB, CPU).sample(logits, batch)] == [3, 6]


def test_the_highest_number_draws_a_possible_token_however_sums_round() -> None:
    logits = torch.randn(200, VOCAB, generator=fresh_generator())
    logits[:, 90:] = -2000.0
    row = SamplingRow("r", SamplingParams(1, temperature=1.0, seed=_seed_of(2**64 - 1, 1)), (1,))
    assert {s.token_id for s in Sampler(VOCAB, CPU).sample(logits, [row] * 200)} == {89}


def test_logprobs_are_those_of_the_model() -> None:
    generator = fresh_generator()
    logits = torch.randn(4, VOCAB, generator=generator) * 4
    asked = SamplingParams(
        1, temperature=1.7, top_k=9, top_p=0.9, repetition_penalty=1.4, seed=4, logprobs=True
    )
    batch = [
        SamplingRow("a", asked, integers(generator, 0, VOCAB, 5)),
        SamplingRow("b", SamplingParams(1), (1,)),
        SamplingRow("c", SamplingParams(1, logprobs=True), (1,)),
        SamplingRow("d", replace(asked, logprobs=False), (1,)),
    ]
    sampled = Sampler(VOCAB, CPU).sample(logits, batch)
    expected = logits.double().log_softmax(-1)
    assert [s.logprob is not None for s in sampled] == [True, False, True, False]
    for i in (0, 2):
        assert sampled[i].logprob == pytest.approx(float(expected[i, sampled[i].token_id]), abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_not_finite_concern_their_row_only(bad: float, temperature: float) -> None:
    logits = _logits(5, 3)
    p = SamplingParams(1, temperature=temperature, top_k=20, top_p=0.9, repetition_penalty=1.2, logprobs=True)
    batch = [SamplingRow(f"r{i}", replace(p, seed=i), (i, 2 * i)) for i in range(5)]
    healthy = Sampler(VOCAB, CPU).sample(logits, batch)
    assert all(s.finite for s in healthy)
    for place in (0, VOCAB // 2, VOCAB - 1):
        damaged = logits.clone()
        damaged[2, place] = bad
        sampled = Sampler(VOCAB, CPU).sample(damaged, batch)
        assert [s.finite for s in sampled] == [True, True, False, True, True]
        assert 0 <= sampled[2].token_id < VOCAB
        assert [s for i, s in enumerate(sampled) if i != 2] == [s for i, s in enumerate(healthy) if i != 2]


@pytest.mark.parametrize(
    "changes", [{"temperature": 1e-300}, {"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-300}]
)
def test_extreme_values_choose_the_most_likely_token(changes: dict[str, float]) -> None:
    logits = _logits(1, 8)
    for seed in range(20):
        row = SamplingRow("r", SamplingParams(1, seed=seed, **changes), (1,))
        assert _alone(logits[0], row).token_id == int(logits.argmax())


def test_the_penalty_follows_the_sequence_as_it_grows() -> None:
    generator = fresh_generator()
    sampler = Sampler(VOCAB, CPU)
    p = SamplingParams(40, repetition_penalty=1.5)
    tokens = {name: integers(generator, 0, VOCAB, 6) for name in "abc"}
    for step in range(25):
        # Sequences come and go between steps, as the scheduler likes.
        names = ["a", "b", "c"] if step % 3 else ["c", "a"]
        logits = torch.randn(len(names), VOCAB, generator=generator)
        batch = [SamplingRow(name, p, tokens[name]) for name in names]
        for i, (row, sampled) in enumerate(zip(batch, sampler.sample(logits, batch), strict=True)):
            assert sampled.token_id == int(_processed(logits[i], row).argmax())
            tokens[row.id].append(sampled.token_id)


def test_a_forgotten_sequence_starts_anew() -> None:
    sampler = Sampler(VOCAB, CPU)
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8] = 2.0, 1.5
    p = SamplingParams(1, repetition_penalty=2.0)
    assert sampler.sample(logits, [SamplingRow("a", p, [7])])[0].token_id == 8
    sampler.forget("a")
    sampler.forget("a")
    assert sampler.sample(logits, [SamplingRow("a", p, [9])])[0].token_id == 7
