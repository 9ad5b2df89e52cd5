"""A seed gives the same tokens on the device and on the host, and with any options that do not affect tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.device import DeviceSampler, device_samples
from engines.sampling.sampler import Sampler
from tests.support.seeds import generator_from, integers

CPU = torch.device("cpu")
ROWS = 24
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 20},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 2.0},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.01, "temperature": 0.8},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "top_p": 0.95},
    {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": -0.1, "top_k": 50},
    {"temperature": 0.0, "frequency_penalty": 1.5},
)
HOST_OPTIONS: tuple[dict[str, Any], ...] = (
    {"logprobs": True, "top_logprobs": 3},
    {"logit_bias": ((3, 0.0),)},
    {"min_new_tokens": 1},
    {"bad_words": ((1, 2, 3, 4, 5),)},
    {"prompt_logprobs": 2},
)
"""Options that need the host's sampler and change no token of these sequences."""


def make_case(changes: dict[str, Any], vocab: int, kind: str) -> tuple[torch.Tensor, list[SamplingRow]]:
    """Make sequences with three output tokens. kind: `smooth` or `ties` (many equal logits, as in 16 bits)."""
    generator = generator_from(len(str(changes)) + vocab)
    logits = torch.randn(ROWS, vocab, generator=generator) * 3
    params = SamplingParams(99, **({"temperature": 1.0} | changes))
    rows = []
    for i in range(ROWS):
        tokens = integers(generator, 0, vocab, 12 + i)
        rows.append(SamplingRow(f"r{i}", replace(params, seed=2**64 - 1 - 5 * i), tokens, len(tokens) - 3))
    return logits if kind == "smooth" else logits.bfloat16(), rows


def on_the_device(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    sampler = DeviceSampler(logits.shape[1], ROWS, CPU)
    assert all(device_samples(row.params) for row in rows)
    sampler.admit(range(ROWS), rows)
    tokens, finite, _ = sampler.sample(
        logits, torch.arange(ROWS), torch.tensor([len(row.token_ids) for row in rows])
    )
    assert bool(finite.all())
    return tokens.tolist()


def on_the_host(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    sampled = Sampler(logits.shape[1], CPU).sample(logits, rows)
    assert all(each.finite for each in sampled)
    return [each.token_id for each in sampled]


@pytest.mark.parametrize("kind", ["smooth", "ties"])
@pytest.mark.parametrize("vocab", [97, 5000])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_device_and_host_draw_the_same_tokens(changes: dict[str, Any], vocab: int, kind: str) -> None:
    logits, rows = make_case(changes, vocab, kind)
    expected = on_the_device(logits, rows)
    assert on_the_host(logits, rows) == expected
    for options in HOST_OPTIONS:
        others = [row._replace(params=replace(row.params, **options)) for row in rows]
        assert not any(device_samples(row.params) for row in others)
        assert on_the_host(logits, others) == expected


def test_other_seeds_and_positions_give_other_tokens() -> None:
    logits, rows = make_case({}, 5000, "smooth")
    expected = on_the_device(logits, rows)
    other_seeds = [row._replace(params=replace(row.params, seed=i)) for i, row in enumerate(rows)]
    later = [row._replace(token_ids=[*row.token_ids, 1]) for row in rows]
    for changed in (other_seeds, later):
        assert sum(a != b for a, b in zip(on_the_host(logits, changed), expected, strict=True)) > ROWS // 2
