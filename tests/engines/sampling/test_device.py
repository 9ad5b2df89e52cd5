"""`DeviceSampler`: a table of what is asked, and a batch of rows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engines.core import SamplingParams
from engines.sampling.device import DeviceSampler, device_samples
from tests.support.seeds import fresh_generator

VOCAB = 60
GREEDY = SamplingParams(max_new_tokens=1)
DRAWN = replace(GREEDY, temperature=1.0)
CPU = torch.device("cpu")


def sample(
    sampler: DeviceSampler, logits: torch.Tensor, rows: list[int], positions: list[int]
) -> tuple[list[int], list[bool]]:
    tokens, finite = sampler.sample(logits, torch.tensor(rows), torch.tensor(positions))
    return tokens.tolist(), finite.tolist()


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 2**64 - 1},
        {"typical_p": 0.5},
        {"stop_token_ids": (1,), "max_new_tokens": 9},
    ],
    ids=str,
)
def test_what_the_device_does(asked: dict[str, Any]) -> None:
    assert device_samples(replace(GREEDY, **asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"typical_p": 0.5, "temperature": 1.0},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": ((1, 1.0),)},
        {"bad_words": ((1,),)},
        {"min_new_tokens": 1},
        {"logprobs": True},
        {"top_logprobs": 1},
        {"prompt_logprobs": 0},
        {"num_beams": 2},
    ],
    ids=str,
)
def test_what_it_leaves_to_the_sampler(asked: dict[str, Any]) -> None:
    assert not device_samples(replace(GREEDY, **asked))


def test_each_row_gets_what_its_own_request_asks_for() -> None:
    sampler = DeviceSampler(VOCAB, 8, CPU)
    logits = torch.randn(60, VOCAB, generator=fresh_generator())
    largest = logits.argmax(-1).tolist()
    asked = [GREEDY, replace(DRAWN, top_k=1), replace(DRAWN, top_p=1e-9), replace(DRAWN, min_p=1.0), DRAWN]
    sampler.admit([5, 0, 7, 2, 3], asked)
    positions = list(range(60))
    for row in (5, 0, 7, 2):
        assert sample(sampler, logits, [row] * 60, positions)[0] == largest
    drawn, _ = sample(sampler, logits, [3] * 60, positions)
    assert sum(a != b for a, b in zip(drawn, largest, strict=True)) > 25
    sampler.admit([3], [replace(DRAWN, top_k=2)])
    of_two, _ = sample(sampler, logits, [3] * 60, positions)
    best = logits.topk(2).indices.tolist()
    assert all(token in pair for token, pair in zip(of_two, best, strict=True))
    assert {pair.index(token) for token, pair in zip(of_two, best, strict=True)} == {0, 1}


def test_draws_go_by_seed_and_position_and_nothing_else() -> None:
    logits = torch.zeros(1, VOCAB)
    sampler = DeviceSampler(VOCAB, 4, CPU)
    seeds = (0, 1, 2**63 + 5, 2**64 - 1)
    sampler.admit(range(4), [replace(DRAWN, seed=seed) for seed in seeds])
    rows = [row for row in range(4) for _ in range(20)]
    positions = list(range(20)) * 4
    together, _ = sample(sampler, logits.expand(80, -1), rows, positions)
    alone = [sample(sampler, logits, [row], [at])[0][0] for row, at in zip(rows, positions, strict=True)]
    assert together == alone
    by_seed = [together[20 * row : 20 * row + 20] for row in range(4)]
    assert len({tuple(tokens) for tokens in by_seed}) == 4
    assert all(len(set(tokens)) > 5 for tokens in by_seed)
    elsewhere = DeviceSampler(VOCAB, 9, CPU)
    elsewhere.admit([8], [replace(DRAWN, seed=seeds[2])])
    assert sample(elsewhere, logits.expand(20, -1), [8] * 20, positions[:20])[0] == by_seed[2]


def test_of_equal_logits_a_tiny_nucleus_is_the_greedy_choice() -> None:
    logits = torch.zeros(50, VOCAB)
    logits[:, 7] = logits[:, 9] = logits[:, 30] = 2.0
    sampler = DeviceSampler(VOCAB, 1, CPU)
    sampler.admit([0], [replace(DRAWN, top_p=1e-6)])
    assert sample(sampler, logits, [0] * 50, list(range(50)))[0] == [7] * 50


def test_padding_is_greedy_and_rows_that_are_not_finite_are_told() -> None:
    logits = torch.randn(5, VOCAB, generator=fresh_generator())
    logits[1, 3], logits[2, 4], logits[3] = torch.nan, torch.inf, -torch.inf
    sampler = DeviceSampler(VOCAB, 2, CPU)
    sampler.admit([0, 1], [replace(DRAWN, top_k=5, top_p=0.9), replace(DRAWN, top_p=0.9)])
    tokens, finite = sample(sampler, logits, [2, 0, 1, 0, 2], [0] * 5)
    assert finite == [True, False, False, False, True]
    assert [tokens[0], tokens[4]] == [logits[0].argmax(), logits[4].argmax()]
    assert all(0 <= token < VOCAB for token in tokens)
