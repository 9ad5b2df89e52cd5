"""What is told about the chosen tokens: log-probabilities under the model's distribution before any step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import TokenLogprobs
from engines.sampling.batch import SamplingRow
from engines.sampling.likeliest import likeliest


def report(
    logits: torch.Tensor, chosen: torch.Tensor, rows: Sequence[SamplingRow]
) -> tuple[dict[int, float], dict[int, TokenLogprobs]]:
    """Log-probabilities of the chosen tokens, and the likeliest tokens with theirs; each by row, of those that ask.

    logits: [num_rows, vocab_size], any float dtype; chosen: [num_rows], int64.
    """
    asking = [i for i, row in enumerate(rows) if row.params.logprobs or row.params.top_logprobs > 0]
    if not asking:
        return {}, {}
    index = torch.tensor(asking, device=logits.device)
    logprobs = (logits if len(asking) == len(rows) else logits[index]).float().log_softmax(dim=-1)
    values = logprobs.gather(1, chosen[index][:, None])[:, 0].tolist()
    own = {i: value for i, value in zip(asking, values, strict=True) if rows[i].params.logprobs}
    places = [place for place, i in enumerate(asking) if rows[i].params.top_logprobs > 0]
    if not places:
        return own, {}
    with_top = [asking[place] for place in places]
    picked = logprobs if len(places) == len(asking) else logprobs[torch.tensor(places, device=logits.device)]
    tops = likeliest(picked, [rows[i].params.top_logprobs for i in with_top])
    return own, dict(zip(with_top, tops, strict=True))
