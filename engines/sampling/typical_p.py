"""Keep tokens whose information is nearest to what is expected (Meister et al. 2022, arXiv:2202.00666)."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.cumulative import fixed_point_limit, keep_mass
from engines.sampling.logit_rows import rows_of

_SMALLEST = torch.finfo(torch.float32).min
_ENTROPY_UNIT = 2.0**56
"""Entropy is at most log(vocab_size), below 2**4: sums stay far below 2**63."""


def typical_p(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """The tokens whose -log p is nearest to the entropy stay until they have probability typical_p; ties stay too.

    logits: [num_rows, vocab_size], fp32, changed in place.
    """
    rows = [i for i in batch.drawn if batch.rows[i].params.typical_p < 1.0]
    if not rows:
        return
    limits = [fixed_point_limit(batch.rows[i].params.typical_p) for i in rows]
    with rows_of(logits, rows) as picked:
        logprobs = picked.log_softmax(dim=-1)
        probabilities = picked.softmax(dim=-1)
        # -inf times 0 is not a number; any finite number times 0 is 0. Added as whole numbers, whatever the order.
        parts = logprobs.clamp(min=_SMALLEST).mul_(probabilities).mul_(-_ENTROPY_UNIT).to(torch.int64)
        entropy = (parts.sum(dim=-1, keepdim=True).double() / _ENTROPY_UNIT).float()
        nearness = logprobs.add_(entropy).abs_().neg_()
        keep_mass(picked, nearness, probabilities, torch.tensor(limits, device=logits.device), ties=True)
