"""Reported log-probabilities, and the candidates of beam search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.core import SampledToken, SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from lmi_kernels import likeliest
from tests.support.examples import examples
from tests.support.sampling_oracle import processed
from tests.support.seeds import fresh_generator, generator_from, integers

VOCAB = 101
CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**31 - 1)
STEERED = SamplingParams(
    1, temperature=1.7, top_k=9, top_p=0.9, repetition_penalty=1.4, presence_penalty=0.3, seed=4
)


def _sample(logits: torch.Tensor, *params: SamplingParams) -> list[SampledToken]:
    generator = fresh_generator()
    rows = [SamplingRow(f"r{i}", p, integers(generator, 0, VOCAB, 6), 3) for i, p in enumerate(params)]
    return Sampler(logits.shape[-1], CPU).sample(logits, rows)


def test_logprobs_ignore_sampling_parameters() -> None:
    logits = torch.randn(5, VOCAB, generator=fresh_generator()) * 4
    sampled = _sample(
        logits,
        replace(STEERED, logprobs=True),
        SamplingParams(1),
        SamplingParams(1, logprobs=True),
        STEERED,
        replace(STEERED, top_logprobs=2),
    )
    assert [s.logprob is not None for s in sampled] == [True, False, True, False, False]
    assert [len(s.top) for s in sampled] == [0, 0, 0, 0, 2]
    for i in (0, 2):
        expected = float(logits[i].double().log_softmax(-1)[sampled[i].token_id])
        assert sampled[i].logprob == pytest.approx(expected, abs=1e-5)


@examples(30)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), SEEDS, st.booleans())
def test_top_logprobs_are_the_largest_in_descending_order(counts: list[int], seed: int, coarse: bool) -> None:
    logits = torch.randn(len(counts), VOCAB, generator=generator_from(seed)) * 2
    logits = logits.round() if coarse else logits
    sampled = _sample(logits, *[replace(STEERED, top_logprobs=count) for count in counts])
    expected = logits.log_softmax(-1)
    for values, count, token in zip(expected.tolist(), counts, sampled, strict=True):
        order = sorted(range(VOCAB), key=lambda i: (-values[i], i))[:count]
        assert [i for i, _ in token.top] == order
        assert [value for _, value in token.top] == pytest.approx([values[i] for i in order], abs=1e-5)


def test_logprobs_of_half_precision_are_computed_in_fp32() -> None:
    logits = (torch.randn(1, VOCAB, generator=fresh_generator()) * 4).to(torch.bfloat16)
    (sampled,) = _sample(logits, SamplingParams(1, logprobs=True, top_logprobs=1))
    assert sampled.logprob == pytest.approx(float(logits.double().log_softmax(-1).max()), abs=1e-5)
    assert sampled.top == ((sampled.token_id, sampled.logprob),)


def test_masked_tokens_are_not_reported() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, [7, 50, 60]] = torch.tensor([1.0, 2.0, 1.0])
    (sampled,) = _sample(logits, SamplingParams(1, top_logprobs=5))
    assert [token for token, _ in sampled.top] == [50, 7, 60]


def test_likeliest_returns_at_most_the_vocabulary() -> None:
    values = torch.tensor([[3.0, 1.0, 1.0, 2.0]])
    for count in (4, 5, 9):
        assert likeliest(values, [count]) == [((0, 3.0), (3, 2.0), (1, 1.0), (2, 1.0))]
    assert likeliest(values, [3]) == [((0, 3.0), (3, 2.0), (1, 1.0))]


beams = st.builds(
    SamplingParams,
    max_new_tokens=st.just(8),
    num_beams=st.integers(2, 5),
    repetition_penalty=st.sampled_from([0.7, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    frequency_penalty=st.sampled_from([0.0, -0.2]),
    logit_bias=st.sampled_from([(), ((5, 2.0), (60, -3.0))]),
    bad_words=st.sampled_from([(), ((3,), (1, 2), (4, 5, 6))]),
    min_new_tokens=st.sampled_from([0, 4]),
    stop_token_ids=st.sampled_from([(), (1,), (1, 2, 3, 4, 5, 6, 7)]),
)


@examples(30)
@given(st.lists(beams, min_size=1, max_size=5), SEEDS)
def test_beam_candidates_equal_transformers(params: list[SamplingParams], seed: int) -> None:
    """transformers' beam search applies processors to log-probabilities and does not renormalize them."""
    generator = generator_from(seed)
    logits = torch.randn(len(params) + 1, VOCAB, generator=generator) * 4
    rows = [SamplingRow(f"r{i}", p, integers(generator, 0, 8, 9), 5) for i, p in enumerate(params)]
    other = SamplingRow("other", replace(STEERED, top_logprobs=9), [1, 2], 1)
    sampled = Sampler(VOCAB, CPU).sample(logits, [*rows, other])
    for row, own, token in zip(rows, logits, sampled, strict=False):
        theirs = processed(own, row)
        count = row.params.num_beams + max(row.params.num_beams, len(row.params.stop_token_ids))
        values, ids = theirs.topk(count)
        assert token.finite
        assert [i for i, _ in token.top] == ids.tolist()
        assert [value for _, value in token.top] == pytest.approx(values.tolist(), abs=1e-5)
        assert token.token_id == int(ids[0])
        assert Sampler(VOCAB, CPU).sample(own[None], [row]) == [token]
