"""Log-probabilities of chosen tokens, under the model's distribution before any sampling step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import TokenLogprobs
from engines.sampling.batch import SamplingRow
from lmi_kernels import row_logprobs


def report(
    logits: torch.Tensor, chosen: torch.Tensor, rows: Sequence[SamplingRow]
) -> tuple[dict[int, float], dict[int, TokenLogprobs]]:
    """Return the log-probabilities of chosen tokens, and the most likely tokens with theirs, each for the rows that
    want them.

    logits: [num_rows, vocab_size], any float dtype; chosen: [num_rows], int64.
    """
    reported = [i for i, row in enumerate(rows) if row.params.logprobs or row.params.top_logprobs > 0]
    if not reported:
        return {}, {}
    counts = [rows[i].params.top_logprobs for i in reported]
    logprobs, tops = row_logprobs(logits, reported, chosen[reported], counts)
    return (
        {i: value for i, value in zip(reported, logprobs, strict=True) if rows[i].params.logprobs},
        {i: top for i, top, count in zip(reported, tops, counts, strict=True) if count > 0},
    )
