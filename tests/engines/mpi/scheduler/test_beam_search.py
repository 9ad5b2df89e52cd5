"""Beam search against transformers on small models, and against a plain implementation where scores are equal."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from engines.core import FinishReason, SamplingParams, TokenLogprobs
from engines.mpi.scheduler.beam_search import BeamResult, BeamSearch
from tests.support.examples import examples
from tests.support.representatives import representatives

NextTokens = Callable[[list[tuple[int, ...]]], list[list[float]]]
"""Function that returns, for each output so far, the log-probability of every vocabulary token."""


@dataclass(frozen=True, slots=True)
class _Case:
    num_beams: int
    length_penalty: float
    early_stopping: bool
    stop_token_ids: tuple[int, ...]
    max_new_tokens: int
    repetition_penalty: float = 1.0
    prompt: tuple[int, ...] = ()

    def search(self) -> BeamSearch:
        return BeamSearch(
            SamplingParams(
                self.max_new_tokens,
                stop_token_ids=self.stop_token_ids,
                num_beams=self.num_beams,
                length_penalty=self.length_penalty,
                early_stopping=self.early_stopping,
            )
        )


def _likeliest(logprobs: list[float], case: _Case) -> TokenLogprobs:
    count = case.num_beams + max(case.num_beams, len(case.stop_token_ids))
    order = sorted(range(len(logprobs)), key=lambda token: (-logprobs[token], token))
    return tuple((token, logprobs[token]) for token in order[:count])


def _run(case: _Case, next_tokens: NextTokens, shuffle: random.Random | None = None) -> BeamResult:
    """Drive a search as an engine does, and check the order of the live hypotheses."""
    search = case.search()
    live: list[tuple[int, ...]] = [()]
    while not search.done:
        assert len(live) == search.num_live
        candidates = [_likeliest(logprobs, case) for logprobs in next_tokens(live)]
        if shuffle is not None:
            candidates = [tuple(shuffle.sample(some, len(some))) for some in candidates]
        continuations = search.advance(candidates)
        parents = [continuation.parent for continuation in continuations]
        for parent in parents:
            assert parent >= len(parents) or parents[parent] == parent
        live = [(*live[continuation.parent], continuation.token_id) for continuation in continuations]
        assert len(set(live)) == len(live)
    return search.best()


def _score(result: BeamResult, case: _Case) -> float:
    return math.fsum(result.logprobs) / len(result.token_ids) ** case.length_penalty


# transformers


@cache
def _model(seed: int) -> LlamaForCausalLM:
    """Random weights, with a bias on the first few tokens, so that stop tokens occur."""
    numbers = random.Random(seed)
    vocab_size = numbers.randrange(50, 201)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
    ).eval()
    model.lm_head = torch.nn.Linear(16, vocab_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        model.lm_head.bias.zero_()
        model.lm_head.bias[:4] = numbers.choice([-1.0, 0.0, 1.0, 2.0, 4.0])
    return model


def _random_case(numbers: random.Random, vocab_size: int) -> _Case:
    return _Case(
        num_beams=numbers.randrange(2, 7),
        length_penalty=numbers.choice([-1.0, 0.0, 0.5, 1.0, 2.0]),
        early_stopping=numbers.random() < 0.5,
        stop_token_ids=tuple(range(numbers.randrange(5))),
        max_new_tokens=numbers.randrange(1, 21),
        repetition_penalty=numbers.choice([1.0, 1.0, 1.3, 0.8]),
        prompt=tuple(numbers.randrange(vocab_size) for _ in range(numbers.randrange(1, 8))),
    )


@torch.inference_mode()
def _by_transformers(model: LlamaForCausalLM, case: _Case) -> tuple[tuple[int, ...], float]:
    """Return the best hypothesis and its score."""
    prompt = torch.tensor([case.prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about options that are not in use
        result = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            num_beams=case.num_beams,
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
            max_new_tokens=case.max_new_tokens,
            repetition_penalty=case.repetition_penalty,
            eos_token_id=list(case.stop_token_ids) or None,
            pad_token_id=model.config.vocab_size - 1,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    return tuple(result.sequences[0, len(case.prompt) :].tolist()), result.sequences_scores[0].item()


def _by_model(model: LlamaForCausalLM, case: _Case) -> NextTokens:
    processor = RepetitionPenaltyLogitsProcessor(case.repetition_penalty)

    @torch.inference_mode()
    def next_tokens(outputs: list[tuple[int, ...]]) -> list[list[float]]:
        ids = torch.tensor([[*case.prompt, *output] for output in outputs])
        logprobs = torch.log_softmax(model(ids, use_cache=False).logits[:, -1], dim=-1)
        found: list[list[float]] = processor(ids, logprobs).tolist()
        return found

    return next_tokens


def _compare(seed: int) -> BeamResult:
    numbers = random.Random(seed)
    model = _model(seed % 20)
    case = _random_case(numbers, model.config.vocab_size)
    tokens, score = _by_transformers(model, case)
    result = _run(case, _by_model(model, case))
    assert result.token_ids == tokens, case
    assert _score(result, case) == pytest.approx(score, rel=1e-5, abs=1e-5), case
    ended = tokens[-1] in case.stop_token_ids
    assert result.finish_reason == (FinishReason.EOS_TOKEN if ended else FinishReason.LENGTH)
    return result


@pytest.mark.parametrize("part", representatives(range(4), [0, 1]))
def test_tokens_and_score_equal_those_of_transformers(part: int) -> None:
    results = [_compare(seed) for seed in range(25 * part, 25 * (part + 1))]
    ends = [result.finish_reason for result in results]
    assert 4 < ends.count(FinishReason.EOS_TOKEN) < 21, "both ends should be well represented"


# Equal scores, small vocabularies and banned tokens: against the same rules without shortcuts


def _search_plainly(case: _Case, next_tokens: NextTokens, vocab_size: int) -> tuple[tuple[int, ...], float]:
    """Run beam search over the whole vocabulary, with hypotheses always sorted by rank."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    kept: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, case.max_new_tokens + 1):
        rows = next_tokens([tokens for tokens, _ in live])
        grown = [
            ((*tokens, token), total + row[token])
            for (tokens, total), row in zip(live, rows, strict=True)
            for token in range(vocab_size)
            if row[token] != -math.inf
        ]
        grown.sort(key=lambda one: -one[1])  # stable: by parent and token id
        last = length == case.max_new_tokens
        ended = [one for one in grown[: case.num_beams] if last or one[0][-1] in case.stop_token_ids]
        kept += [(total / length**case.length_penalty, tokens) for tokens, total in ended]
        kept = sorted(kept, key=lambda one: -one[0])[: case.num_beams]
        live = [one for one in grown if one[0][-1] not in case.stop_token_ids][: case.num_beams]
        full = len(kept) == case.num_beams
        if not live or (
            full and (case.early_stopping or live[0][1] / length**case.length_penalty <= kept[-1][0])
        ):
            break
    return kept[0][1], kept[0][0]


_CASES = st.builds(
    _Case,
    num_beams=st.integers(2, 5),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early_stopping=st.booleans(),
    stop_token_ids=st.sampled_from([(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]),
    max_new_tokens=st.integers(1, 8),
)


def _toy_model(seed: int, vocab_size: int, banned: float) -> NextTokens:
    """Log-probabilities are multiples of 1/2, so equal scores are common. Some tokens are banned, never all."""

    def row(output: tuple[int, ...]) -> list[float]:
        numbers = random.Random(f"{seed} {output}")
        logprobs = [
            -math.inf if numbers.random() < banned else -numbers.randrange(1, 6) / 2
            for _ in range(vocab_size)
        ]
        logprobs[numbers.randrange(vocab_size)] = -0.5
        return logprobs

    return lambda outputs: [row(output) for output in outputs]


@examples(300)
@given(_CASES, st.integers(0, 2**32), st.sampled_from([5, 9, 30]), st.sampled_from([0.0, 0.2, 0.9]))
def test_the_order_of_hypotheses_and_candidates_does_not_matter(
    case: _Case, seed: int, vocab_size: int, banned: float
) -> None:
    model = _toy_model(seed, vocab_size, banned)
    result = _run(case, model, random.Random(seed))
    assert (result.token_ids, _score(result, case)) == _search_plainly(case, model, vocab_size)


# Dead ends

_TWO_BEAMS = _Case(2, length_penalty=1.0, early_stopping=False, stop_token_ids=(9,), max_new_tokens=10)


def test_a_dead_end_returns_the_best_finished_hypothesis() -> None:
    search = _TWO_BEAMS.search()
    search.advance([((9, -1.0), (1, -2.0), (2, -3.0))])
    assert search.advance([((1, -math.inf),), ()]) == []
    assert search.done
    assert search.best().token_ids == (9,)


def test_a_dead_end_without_a_finished_hypothesis_raises() -> None:
    search = _TWO_BEAMS.search()
    with pytest.raises(ValueError, match="every continuation has probability 0"):
        search.advance([((1, -math.inf),)])
