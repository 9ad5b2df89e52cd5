"""Causal attention of prefill chunks over the paged cache: `varlen_attention` for many query tokens a sequence.

The same kernel and contract (any batch is computed right), with larger tiles, and with the tiles of keys that all rows
of a block see whole in a loop without masks: all but the diagonal's and those that the window cuts.
"""

from __future__ import annotations

import torch

from lmi_kernels import tuning
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules
from lmi_kernels.attention.varlen import launch_attention, tile_key


def prefill_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: PagedSequences,
    cu_seqlens_q: torch.Tensor,
    max_query_len: int,
    rules: ScoreRules,
    out: torch.Tensor,
) -> None:
    """As `varlen_attention`, argument for argument."""
    tiles = tuning.parameters("prefill_attention", tile_key(q), q.device)
    launch_attention(q, pool, sequences, cu_seqlens_q, max_query_len, rules, out, tiles, splits=True)
