"""Keep the k most likely tokens (Fan et al. 2018, arXiv:1805.04833)."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.cumulative import Ordered, keep_first
from engines.sampling.logit_rows import rows_of


def top_k(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Tokens below the row's k-th largest logit become -inf, ties with it stay.

    logits: [num_rows, vocab_size], fp32, changed in place.
    """
    vocab_size = logits.shape[-1]
    rows = [i for i in batch.drawn if 0 < batch.rows[i].params.top_k < vocab_size]
    if not rows:
        return
    ks = [batch.rows[i].params.top_k for i in rows]
    with rows_of(logits, rows) as picked:
        # One more than stays, which shows a tie.
        ordered = picked.topk(max(ks) + 1, dim=-1)
        num_kept = torch.tensor(ks, device=picked.device)
        keep_first(picked, picked, Ordered(ordered.values, ordered.indices, num_kept), ties=True)
