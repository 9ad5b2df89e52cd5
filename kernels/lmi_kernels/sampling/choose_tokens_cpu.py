"""`choose_tokens` on a CPU with torch. It chooses the same tokens, but computes exact noise only for a few.

The vocabulary is searched in chunks. Only chunks with a logit that reaches the threshold matter. If there are many of
them, a coarse search with fast logarithms and a known error bound selects the chunks that can have the best score.
"""

from __future__ import annotations

import torch

from lmi_kernels.sampling.random_numbers_cpu import Keys, first_word, mix, noise, row_keys
from lmi_kernels.sampling.truncate_logits_cpu import select_rows

_CHUNK = 64
_MIN_FLOAT = torch.finfo(torch.float32).min
_MAX_EXACT_CHUNKS = 128
"""Maximum chunks in a row for which exact noise for all tokens is faster than a coarse search."""


def choose_tokens_cpu(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    thresholds: torch.Tensor,
    last_ids: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement `choose_tokens` for logits after penalties."""
    x = logits.float()
    # amax returns NaN for a row with NaN.
    finite = x.amax(dim=-1).isfinite()
    temperature = temperature.float()
    chosen = torch.zeros(len(x), dtype=torch.int64)
    greedy, drawn = (
        ((temperature == 0.0) & finite).nonzero()[:, 0],
        ((temperature != 0.0) & finite).nonzero()[:, 0],
    )
    if len(greedy):
        chosen[greedy] = select_rows(x, greedy).argmax(dim=-1)
    if len(drawn):
        keys = row_keys(seeds[drawn], positions[drawn])
        tokens, scores = _draw(
            select_rows(x, drawn), temperature[drawn], thresholds[drawn], last_ids[drawn], keys
        )
        finite[drawn] = scores > -torch.inf
        chosen[drawn] = tokens.where(finite[drawn], 0)
    return chosen, finite


def _draw(
    x: torch.Tensor, temperature: torch.Tensor, thresholds: torch.Tensor, last_ids: torch.Tensor, keys: Keys
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens, int64, and their scores (-inf if none may be drawn). x: [num_rows, vocab_size], fp32."""
    # Raise the threshold above -inf, so that no token with -inf reaches it.
    thresholds = thresholds.clamp(min=_MIN_FLOAT)
    if x.shape[1] % _CHUNK:
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % _CHUNK), value=-torch.inf)
    chunks, ids = x.view(len(x), -1, _CHUNK), torch.arange(x.shape[1])
    candidate_chunks = chunks.amax(dim=-1) >= thresholds[:, None]
    long_rows = (candidate_chunks.sum(dim=-1) > _MAX_EXACT_CHUNKS).nonzero()[:, 0]
    coarse_search = CoarseSearch(x.shape[1] if len(long_rows) else 0)
    for i in long_rows.tolist():
        row = x[i]
        if thresholds[i] > _MIN_FLOAT:
            row = row.where(_allowed(row, ids, thresholds[i], last_ids[i]), -torch.inf)
        candidate_chunks[i] &= coarse_search.can_win(row, float(temperature[i]), keys.of(i))
    rows, places = candidate_chunks.nonzero().unbind(1)
    near, ids = chunks[rows, places], ids.view(-1, _CHUNK)[places]
    kept, lanes = _allowed(near, ids, thresholds[rows, None], last_ids[rows, None]).nonzero().unbind(1)
    rows, tokens = rows[kept], ids[kept, lanes]
    scores = near[kept, lanes] + temperature[rows] * noise(tokens.to(torch.int32), keys.of(rows))
    best = torch.full_like(temperature, -torch.inf).scatter_reduce_(0, rows, scores, "amax")
    winners = (scores == best[rows]).nonzero()[:, 0]
    chosen = torch.full((len(x),), x.shape[1]).scatter_reduce_(0, rows[winners], tokens[winners], "amin")
    return chosen, best


def _allowed(
    x: torch.Tensor, ids: torch.Tensor, threshold: torch.Tensor, last_id: torch.Tensor
) -> torch.Tensor:
    return (x > threshold) | ((x == threshold) & (ids <= last_id))


class CoarseSearch:
    """Finds the chunks that may win. One row's buffers are reused for all rows, and stay in the processor's cache."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = torch.arange(vocab_size, dtype=torch.int32)
        self._mixed, self._scratch = torch.empty_like(self._ids), torch.empty_like(self._ids)
        self._scores = torch.empty(vocab_size, dtype=torch.float32)

    def can_win(self, x: torch.Tensor, temperature: float, keys: Keys) -> torch.Tensor:
        """Return which chunks of a row may have the best score: [num_chunks], bool. x: [vocab_size], fp32."""
        words = first_word(mix(self._ids, keys, self._mixed, self._scratch), self._scratch)
        # Without the low bits the noise may be too large by log(2). For a word of 0 it is infinite.
        scores = self._scores.copy_(words).mul_(-0.99999994 * 2.0**-31).log1p_().neg_().log_()
        best = scores.mul_(-temperature).add_(x).view(-1, _CHUNK).amax(dim=-1)
        top = best.max()
        return best >= (top - temperature - 1e-5 * top.abs() if top < torch.inf else -torch.inf)
