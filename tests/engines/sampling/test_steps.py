"""Each sampling step alone: against transformers' logits processor of the same name, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engines.core import SamplingParams
from engines.sampling.batch import SamplingBatch, SamplingRow
from engines.sampling.repetition_penalty import repetition_penalty
from engines.sampling.temperature import temperature
from engines.sampling.top_k import top_k
from engines.sampling.top_p import top_p
from tests.support.seeds import generator_from

VOCAB = 53
SEEDS = st.integers(0, 2**31 - 1)
CLOSE = 1e-5
"""Tokens whose cumulated probability is this near to p may be in or out: two orders of summation differ by less."""


def _batch(params: list[SamplingParams], seen: torch.Tensor | None = None) -> SamplingBatch:
    return SamplingBatch([SamplingRow(f"r{i}", p, ()) for i, p in enumerate(params)], seen)


def _logits(num_rows: int, seed: int, coarse: bool = False) -> torch.Tensor:
    logits = torch.randn(num_rows, VOCAB, generator=generator_from(seed)) * 3
    return logits.round() if coarse else logits  # coarse logits have many ties


@settings(max_examples=50, deadline=None)
@given(st.lists(st.just(0.0) | st.floats(0.01, 100), min_size=1, max_size=6), SEEDS)
def test_temperature(temperatures: list[float], seed: int) -> None:
    logits = _logits(len(temperatures), seed)
    before = logits.clone()
    batch = _batch([SamplingParams(1, temperature=t) for t in temperatures])
    out = temperature(logits, batch)
    for i, t in enumerate(temperatures):
        expected = TemperatureLogitsWarper(t)(torch.empty(1, 0), before[i : i + 1])[0] if t else before[i]
        torch.testing.assert_close(out[i], expected, rtol=1e-6, atol=0)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("tiny", [1e-6, 1e-30, 1e-40, 1e-300])
def test_a_tiny_temperature_leaves_the_most_likely_token(tiny: float) -> None:
    out = temperature(_logits(2, 0), _batch([SamplingParams(1, temperature=tiny), SamplingParams(1)]))
    probabilities = out[0].softmax(-1)
    assert float(probabilities[_logits(2, 0)[0].argmax()]) == pytest.approx(1.0)
    assert torch.equal(out[1], _logits(2, 0)[1])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, VOCAB + 9), min_size=1, max_size=6), SEEDS, st.booleans())
def test_top_k(ks: list[int], seed: int, coarse: bool) -> None:
    logits = _logits(len(ks), seed, coarse)
    before = logits.clone()
    out = top_k(logits, _batch([SamplingParams(1, top_k=k) for k in ks]))
    for i, k in enumerate(ks):
        row = before[i : i + 1]
        expected = TopKLogitsWarper(k)(torch.empty(1, 0), row)[0] if k else row[0]
        assert torch.equal(out[i], expected)
    assert torch.equal(logits, before)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6), SEEDS)
def test_top_p(ps: list[float], seed: int) -> None:
    logits = _logits(len(ps), seed)
    before = logits.clone()
    out = top_p(logits, _batch([SamplingParams(1, top_p=p) for p in ps]))
    for i, p in enumerate(ps):
        row = before[i]
        probabilities = row.double().softmax(-1)
        # What all more likely tokens have together: below p, the token stays.
        more_likely = torch.stack([probabilities[row > logit].sum() for logit in row])
        clear = (more_likely - p).abs() > CLOSE
        kept = out[i] > -math.inf
        assert torch.equal(out[i][kept], row[kept])
        assert torch.equal(kept[clear], (more_likely < p)[clear]) or p == 1.0
        assert bool(kept[row.argmax()])
        theirs = TopPLogitsWarper(p)(torch.empty(1, 0), row[None])[0]
        assert torch.equal(out[i][clear], theirs[clear])
        if p == 1.0:
            assert torch.equal(out[i], row)
    assert torch.equal(logits, before)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 0.99), SEEDS)
def test_top_p_with_ties_keeps_the_smallest_sufficient_set(p: float, seed: int) -> None:
    logits = _logits(1, seed, coarse=True)
    out = top_p(logits, _batch([SamplingParams(1, top_p=p)]))[0]
    probabilities = logits[0].double().softmax(-1)
    kept = out > -math.inf
    mass = float(probabilities[kept].sum())
    assert mass >= p - CLOSE
    assert mass - float(probabilities[kept].min()) < p + CLOSE
    if not bool(kept.all()):
        assert float(probabilities[kept].min()) >= float(probabilities[~kept].max())


@pytest.mark.parametrize("p", [1e-300, 1e-46, 1e-9])
def test_a_tiny_top_p_leaves_the_most_likely_token(p: float) -> None:
    logits = _logits(1, 0)
    out = top_p(logits, _batch([SamplingParams(1, top_p=p)]))[0]
    assert (out > -math.inf).nonzero().tolist() == [[int(logits.argmax())]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.just(1.0) | st.floats(0.1, 10), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)
        ),
        min_size=1,
        max_size=6,
    ),
    SEEDS,
)
def test_repetition_penalty(rows: list[tuple[float, list[int]]], seed: int) -> None:
    logits = _logits(len(rows), seed)
    logits[0, 0] = 0.0
    before = logits.clone()
    seen = torch.zeros(len(rows), VOCAB, dtype=torch.bool)
    for i, (_, tokens) in enumerate(rows):
        seen[i, tokens] = True
    out = repetition_penalty(
        logits, _batch([SamplingParams(1, repetition_penalty=penalty) for penalty, _ in rows], seen)
    )
    for i, (penalty, tokens) in enumerate(rows):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens]), before[i : i + 1])
        torch.testing.assert_close(out[i], expected[0], rtol=1e-6, atol=0)
    assert torch.equal(logits, before)


def test_steps_that_nobody_asked_for_change_nothing() -> None:
    logits = _logits(3, 0)
    batch = _batch([SamplingParams(1)] * 3)
    for step in (repetition_penalty, temperature, top_k, top_p):
        assert torch.equal(step(logits, batch), logits)
