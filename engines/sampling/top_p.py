"""Keep the smallest set of most likely tokens that has probability p (Holtzman et al. 2020, arXiv:1904.09751)."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.cumulative import fixed_point_limit, keep_mass
from engines.sampling.logit_rows import rows_of


def top_p(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Tokens outside the nucleus become -inf; the most likely always stays.

    Of equally likely tokens at its edge those with the lowest ids stay, so that p near 0 is the greedy choice.

    logits: [num_rows, vocab_size], fp32, changed in place.
    """
    rows = [i for i in batch.drawn if batch.rows[i].params.top_p < 1.0]
    if not rows:
        return
    limits = torch.tensor([fixed_point_limit(batch.rows[i].params.top_p) for i in rows], device=logits.device)
    with rows_of(logits, rows) as picked:
        keep_mass(picked, picked, picked.softmax(dim=-1), limits, ties=False)
