"""Reference for `choose_tokens` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels import Penalties
from lmi_kernels.sampling.choose_tokens import _SPAN, choose_tokens
from lmi_kernels.sampling.penalties import penalize
from tests.kernels.references.check import Inputs, OpCheck, Results
from tests.kernels.references.penalties import example_penalties, production_penalties
from tests.kernels.references.random_numbers import gumbel_noise


def choose_tokens_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    thresholds: torch.Tensor,
    last_ids: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    penalties: Penalties | None = None,
) -> Results:
    """Compute the same bits as the kernel, with the noise of all tokens in memory."""
    x = penalize(logits, penalties).float()
    (noise,) = gumbel_noise(seeds, positions, x.shape[1])
    ids, edge = torch.arange(x.shape[1]), thresholds[:, None]
    temperatures = temperature.float()[:, None]
    allowed = (x > edge) | ((x == edge) & (ids <= last_ids[:, None]))
    scores = (x + temperatures * noise).where(allowed & (x > -torch.inf), -torch.inf)
    scores = x.where(temperatures == 0, scores)
    finite = x.amax(dim=-1).isfinite() & (scores.amax(dim=-1) > -torch.inf)
    return scores.argmax(dim=-1).where(finite, 0), finite


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield greedy and sampled rows, many equal logits, and rows that are not finite: with NaN, with inf, only -inf."""
    for rows, vocab, spare in ((4, 1, 0), (9, 97, 3), (2, 9000, 0), (12, 5000, 8)):
        logits = torch.randn(rows, vocab + spare, generator=generator).mul_(3.0)
        # On a coarse grid many logits are equal, the largest included.
        logits = logits.mul_(4.0).round_().div_(4.0).to(dtype)
        logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
        # Logits beyond the vocabulary would win.
        logits[:, vocab:] = 1000.0
        if rows > 8:
            logits[1, vocab - 1] = torch.nan
            logits[2, 5] = torch.inf
            logits[3, :vocab] = -torch.inf
            logits[4, :vocab] = torch.nan
        temperature = torch.rand(rows, generator=generator).add_(0.5)
        temperature[::3] = 0.0
        penalties = example_penalties(generator, rows, vocab)
        # The threshold is one of the row's own logits, so that some tokens equal it.
        edge = penalize(logits[:, :vocab], penalties)[:, vocab // 2].float()
        thresholds = edge.where(torch.rand(rows, generator=generator) < 0.6, -torch.inf)
        last_ids = torch.randint(vocab // 2, vocab, (rows,), dtype=torch.int32, generator=generator)
        if rows > 8:
            # Only tokens at the threshold are left, and only a few of them are allowed.
            logits[7:9, 1:vocab:3] = thresholds[7:9] = 20.0
            last_ids[7:9] = vocab // 8
        if vocab > _SPAN:
            # A greedy row has equal largest logits in one lane and in several.
            logits[0, [7, 7 + _SPAN, 8]] = 40.0
        yield {
            "padded": logits,
            "vocab": vocab,
            "temperature": temperature,
            "thresholds": thresholds,
            "last_ids": last_ids,
            "seeds": torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
            "positions": torch.randint(2**33, (rows,), generator=generator),
            "penalties": penalties,
        }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The vocabulary size is not a constexpr, and all real ones are divisible by 16.
    integers = torch.empty(32, dtype=torch.int64, device="meta")
    inputs = {
        "padded": torch.empty(32, 128256, dtype=dtype, device="meta"),
        "vocab": 128256,
        "temperature": integers.double(),
        "thresholds": integers.float(),
        "last_ids": integers.int(),
        "seeds": integers,
        "positions": integers,
    }
    yield inputs | {"penalties": production_penalties(32, 128256)}
    yield inputs


CHECKS = (
    OpCheck(
        "choose_tokens",
        lambda padded, vocab, **inputs: choose_tokens(padded[:, :vocab], **inputs),
        lambda padded, vocab, **inputs: choose_tokens_reference(padded[:, :vocab], **inputs),
        _examples,
        _production,
        exact=True,
    ),
)
