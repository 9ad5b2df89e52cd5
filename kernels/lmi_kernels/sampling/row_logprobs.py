"""Log-probabilities of chosen tokens and of the likeliest ones, for rows that report them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from lmi_kernels.cpu.sampling import row_logprobs_native
from lmi_kernels.cpu.team import shared_team
from lmi_kernels.sampling.likeliest import TokenLogprobs, likeliest


def row_logprobs(
    logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, counts: Sequence[int]
) -> tuple[list[float], list[TokenLogprobs]]:
    """Compute natural log-probabilities in fp32.

    Args:
        logits: [num_rows, vocab_size], any float dtype, rows contiguous, not changed.
        rows: indices of the rows to compute, at least one.
        tokens: [len(rows)], int64: chosen token of each of these rows.
        counts: number of likeliest tokens to return for each of these rows, 0 or more.

    Returns: for each of these rows, the log-probability of its token, and the likeliest tokens with theirs, likeliest
        first. Equal logits are in the order of token ids. Tokens with -inf are left out. A row that is not finite has
        NaN and no likeliest tokens.
    """
    team = shared_team() if logits.is_cpu else None
    call = partial(row_logprobs_native, team) if team else row_logprobs_torch
    return call(logits, rows, tokens, counts)


def row_logprobs_torch(
    logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, counts: Sequence[int]
) -> tuple[list[float], list[TokenLogprobs]]:
    """Implement `row_logprobs` with torch."""
    logprobs = (logits if len(rows) == len(logits) else logits[rows]).float().log_softmax(dim=-1)
    own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    tops: list[TokenLogprobs] = [()] * len(rows)
    places = [place for place, count in enumerate(counts) if count > 0]
    if places:
        picked = logprobs if len(places) == len(rows) else logprobs[places]
        for place, top in zip(places, likeliest(picked, [counts[place] for place in places]), strict=True):
            tops[place] = top
    return own, tops
