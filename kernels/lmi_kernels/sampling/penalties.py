"""Penalties for tokens of the sequence: repetition (Keskar et al. 2019, arXiv:1909.05858), and OpenAI's presence and
frequency. Kernels apply them to logits as they load them.

A table on the device has a row per sequence and an entry per token of the vocabulary. Bit 0 is set if the token is in
the prompt, and the other bits count its occurrences in the output. `count_tokens_` updates the table.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lmi_kernels._triton import jit, tl


class Penalties(NamedTuple):
    """The penalties of a batch.

    For tokens of the sequence, positive logits become logit / repetition and negative ones logit * repetition. For
    tokens of the output, presence + frequency * count is then subtracted. All of this is in fp32, because in 16 bits
    small penalties of large logits would be lost.
    """

    counts: torch.Tensor
    """[any, vocab_size], int16, contiguous: the table of token counts."""
    table_rows: torch.Tensor
    """[num_rows], int64: row of the table for each row of logits."""
    enabled: torch.Tensor
    """[num_rows], int64: 0 for rows without penalties."""
    values: torch.Tensor
    """[3, num_rows], any float dtype, contiguous: repetition, presence, frequency. 1, 0 and 0 change nothing."""


def penalize(logits: torch.Tensor, penalties: Penalties | None) -> torch.Tensor:
    """Apply penalties on a CPU. logits: [num_rows, vocab_size], any float dtype -> fp32 if any row has penalties."""
    if penalties is None or not penalties.enabled.any():
        return logits
    x, entries = logits.float(), penalties.counts[penalties.table_rows]
    repetition, presence, frequency = penalties.values.float()[:, :, None].unbind()
    count = entries >> 1
    changed = x.where(entries == 0, torch.where(x < 0.0, x * repetition, x / repetition))
    changed = changed - presence.where(count > 0, 0.0) - frequency * count
    return changed.where(penalties.enabled[:, None] != 0, x)


@jit
def penalties_of(row, vocab, counts_ptr, table_rows_ptr, values_ptr):
    """Load a row's penalties for `load_logits`. The first dimension of the grid must be the rows."""
    values_ptr += row
    num_rows = tl.num_programs(0)
    return (
        counts_ptr + tl.load(table_rows_ptr + row) * vocab,
        tl.load(values_ptr).to(tl.float32),
        tl.load(values_ptr + num_rows).to(tl.float32),
        tl.load(values_ptr + 2 * num_rows).to(tl.float32),
    )


@jit
def load_logits(row_ptr, penalties, tokens, vocab):
    """Load logits of a row in fp32, -inf beyond the vocabulary, and apply penalties (None: no penalties).

    Launch kernels with `EXACT`, so that equal sequences get equal logits in all of them.
    """
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
