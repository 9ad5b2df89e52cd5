"""Properties of the sampling kernels beyond their references: extreme noise, and independence of the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lmi_kernels import Penalties
from lmi_kernels._triton import INTERPRETED, jit, tl
from lmi_kernels.sampling.choose_tokens import _GROUP, choose_tokens
from lmi_kernels.sampling.random_numbers import gumbel_of
from lmi_kernels.sampling.truncate_logits import logit_thresholds
from tests.kernels.references.penalties import example_penalties
from tests.support.seeds import fresh_generator

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


@jit
def _noise_of(words_ptr: Any, noise_ptr: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    places = tl.arange(0, BLOCK)
    words = tl.load(words_ptr + places).to(tl.int32)
    tl.store(noise_ptr + places, gumbel_of(words, words * 0 + 1))


def test_noise_is_accurate_and_finite_at_both_ends() -> None:
    fronts = [0, 1, 2, 1000, 2**26 - 1, 2**26, 2**30, 2**31 - 2**8, 2**31 - 1]
    words = torch.tensor(fronts + [0] * (16 - len(fronts)))
    noise = torch.empty(16)
    _noise_of[(1,)](words, noise, BLOCK=16)
    for front, found in zip(fronts, noise.tolist(), strict=False):
        v = min(front * 2.0**-31 + 1.5 * 2.0**-62, 1.0 - 2.0**-24)
        # Near 1, fp32 cannot represent 1 - v precisely. Such noise never wins a draw, so precision does not matter.
        tolerance = 1e-5 if v < 0.9 else 0.05
        assert found == pytest.approx(-math.log(-math.log1p(-v)), abs=tolerance)


def _rows(inputs: dict[str, Any], rows: torch.Tensor | slice) -> dict[str, Any]:
    penalties = inputs["penalties"]
    _, table_rows, enabled, values = penalties
    some = Penalties(penalties.counts, table_rows[rows], enabled[rows], values[:, rows].contiguous())
    return {name: value[rows] for name, value in inputs.items() if name != "penalties"} | {"penalties": some}


def test_tokens_are_the_same_alone_and_in_any_batch() -> None:
    generator = fresh_generator()
    rows, vocab = 17, 5000
    logits = torch.randn(rows, vocab, generator=generator)
    # Tokens are drawn from the first or the second of the parts into which the vocabulary is split for a single row.
    logits[::2, _GROUP:] -= 9.0
    logits[1::2, :_GROUP] -= 9.0
    inputs = {
        "logits": logits,
        "temperature": torch.rand(rows, generator=generator).add_(0.5),
        "thresholds": torch.full((rows,), 1.0),
        "last_ids": torch.full((rows,), vocab, dtype=torch.int32),
        "seeds": torch.randint(2**62, (rows,), generator=generator),
        "positions": torch.randint(2**20, (rows,), generator=generator),
        "penalties": example_penalties(generator, rows, vocab),
    }
    # One program computes each row of this batch. Alone, a row is split among several programs.
    together, _ = choose_tokens(**inputs)
    assert len(set(together.tolist())) > rows // 2
    for i in (0, 7, 16):
        alone, _ = choose_tokens(**_rows(inputs, slice(i, i + 1)))
        assert alone.item() == together[i].item()


def test_thresholds_are_the_same_in_any_batch() -> None:
    generator = fresh_generator()
    rows = 3
    inputs = {
        "logits": torch.randn(rows, 5000, generator=generator).mul_(3.0).half(),
        "temperature": torch.rand(rows, generator=generator).add_(0.5),
        "top_k": torch.tensor([0, 50, 0]),
        "top_p": torch.tensor([0.9, 0.8, 0.5]),
        "min_p": torch.tensor([0.0, 0.0, 0.01]),
        "penalties": example_penalties(generator, rows, 5000),
    }
    together = logit_thresholds(**inputs)
    backwards = logit_thresholds(**_rows(inputs, torch.arange(rows).flip(0)))
    for one, other in zip(together, backwards, strict=True):
        assert torch.equal(one, other.flip(0))
