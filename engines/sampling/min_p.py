"""Keep tokens that are not too unlikely beside the likeliest (Nguyen et al. 2024, arXiv:2407.01082)."""

from __future__ import annotations

import math

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.logit_rows import column, rows_of


def min_p(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Tokens of less than min_p times the probability of the likeliest become -inf.

    logits: [num_rows, vocab_size], fp32, changed in place.
    """
    rows = [i for i in batch.drawn if batch.rows[i].params.min_p > 0.0]
    if not rows:
        return
    with rows_of(logits, rows) as picked:
        # Of logarithms: a quotient of probabilities is a difference of logits.
        distances = column([math.log(batch.rows[i].params.min_p) for i in rows], picked)
        threshold = picked.amax(dim=-1, keepdim=True) + distances
        picked.masked_fill_(picked < threshold, -math.inf)
