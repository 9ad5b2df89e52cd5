"""Penalties for tokens of the sequence: repetition (Keskar et al. 2019, arXiv:1909.05858), and OpenAI's presence and
frequency. Kernels apply them to logits as they load them.

A table on the device has a row per sequence and an entry for each token of the vocabulary: bit 0 says that the token is
in the prompt, the bits above say how often it is in the output. `count_tokens_` updates it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lmi_kernels._triton import jit, tl


class Penalties(NamedTuple):
    """The penalties of a batch. The logit of a token of the sequence becomes logit / repetition where positive, logit *
    repetition where negative; for a token of the output presence + frequency * count is subtracted. In fp32: in 16
    bits small penalties of large logits would vanish."""

    counts: torch.Tensor
    """[any, vocab_size], int16, contiguous: the table."""
    table_rows: torch.Tensor
    """[num_rows], int64: the row of the table that each row of logits has."""
    asks: torch.Tensor
    """[num_rows], int64: 0 in rows without penalties."""
    numbers: torch.Tensor
    """[3, num_rows], any float dtype, contiguous: repetition, presence, frequency; 1, 0 and 0 change nothing."""


def penalize(logits: torch.Tensor, penalties: Penalties | None) -> torch.Tensor:
    """Apply penalties on a CPU. logits: [num_rows, vocab_size], any float dtype -> fp32 where there are penalties."""
    if penalties is None or not penalties.asks.any():
        return logits
    x, entries = logits.float(), penalties.counts[penalties.table_rows]
    repetition, presence, frequency = penalties.numbers.float()[:, :, None].unbind()
    count = entries >> 1
    changed = x.where(entries == 0, torch.where(x < 0.0, x * repetition, x / repetition))
    changed = changed - presence.where(count > 0, 0.0) - frequency * count
    return changed.where(penalties.asks[:, None] != 0, x)


@jit
def penalties_of(row, vocab, counts_ptr, table_rows_ptr, numbers_ptr):
    """Load a row's penalties, as `load_logits` takes them. The grid's first dimension is the rows."""
    numbers_ptr += row
    num_rows = tl.num_programs(0)
    return (
        counts_ptr + tl.load(table_rows_ptr + row) * vocab,
        tl.load(numbers_ptr).to(tl.float32),
        tl.load(numbers_ptr + num_rows).to(tl.float32),
        tl.load(numbers_ptr + 2 * num_rows).to(tl.float32),
    )


@jit
def load_logits(row_ptr, penalties, tokens, vocab):
    """Load a row's logits in fp32, -inf beyond the vocabulary. penalties: those of the row, or None. Kernels are
    launched with `EXACT`, so that equal sequences get equal logits wherever they are sampled."""
    inside = tokens < vocab
    x = tl.load(row_ptr + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    if penalties is not None:
        counts_ptr, repetition, presence, frequency = penalties
        entry = tl.load(counts_ptr + tokens, mask=inside, other=0).to(tl.int32)
        count = entry >> 1
        x = tl.where(entry == 0, x, tl.where(x < 0.0, x * repetition, tl.div_rn(x, repetition)))
        x -= tl.where(count > 0, presence, 0.0)
        x -= frequency * count.to(tl.float32)
    return x
