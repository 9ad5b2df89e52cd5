"""Keep tokens whose information is nearest to what is expected (Meister et al. 2022, arXiv:2202.00666)."""

from __future__ import annotations

import math

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.logit_rows import column, rows_of
from lmi_kernels import nucleus_edge

_LEAST_HEAT = 1e-30
"""As sharp as fp32 can tell; divided by less, logits would overflow."""
_SMALLEST = torch.finfo(torch.float32).min
_ENTROPY_UNIT = 2.0**56
"""Entropy is at most log(vocab_size), below 2**4: sums stay far below 2**63."""


def typical_p(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Of the tokens that are left those whose -log p is nearest to the entropy stay, until they have probability
    typical_p; ties stay too.

    logits: [num_rows, vocab_size], fp32, changed in place.
    """
    rows = [i for i in batch.drawn if batch.rows[i].params.typical_p < 1.0]
    if not rows:
        return
    masses = torch.tensor(
        [batch.rows[i].params.typical_p for i in rows], dtype=torch.float64, device=logits.device
    )
    with rows_of(logits, rows) as picked:
        heated = picked / column([max(batch.rows[i].params.temperature, _LEAST_HEAT) for i in rows], picked)
        logprobs = heated.log_softmax(dim=-1)
        probabilities = heated.softmax(dim=-1)
        # -inf times 0 is not a number; any finite number times 0 is 0. Added as whole numbers, whatever the order.
        parts = logprobs.clamp(min=_SMALLEST).mul_(probabilities).mul_(-_ENTROPY_UNIT).to(torch.int64)
        entropy = (parts.sum(dim=-1, keepdim=True).double() / _ENTROPY_UNIT).float()
        nearness = logprobs.add_(entropy).abs_().neg_()
        edges, _ = nucleus_edge(nearness, probabilities, masses)
        picked.masked_fill_(nearness < edges[:, None], -math.inf)
