"""A step's attention on a GPU: Triton kernels, and block tables on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

import lmi_kernels
from engines.layers.attention_rule import AttentionRule
from engines.layers.rotary import RotaryTables
from lmi_kernels import DecodePlan, PagedSequences


@dataclass(frozen=True, slots=True)
class PagedStepAttention:
    """Token rows: single tokens first, one a sequence, then chunks. All tensors on the device."""

    positions: torch.Tensor
    """[num_rows], int64."""
    slot_mapping: torch.Tensor
    """[num_rows], int64; -1: padding."""
    tables: RotaryTables
    singles: PagedSequences
    """Sequences with one token, the first rows; may be none."""
    decode_plans: Mapping[int | None, DecodePlan]
    """Plan of the singles for each window in the model; empty when there are no singles."""
    chunks: PagedSequences | None = None
    """Sequences with several tokens; None: there are none."""
    cu_seqlens_q: torch.Tensor | None = None
    """[num_chunks + 1], int32: bounds of the chunks' rows, counted from the first chunk's first row."""
    max_query_len: int = 0
    """Length of the longest chunk."""

    def attend(self, qkv: torch.Tensor, rule: AttentionRule, pool: torch.Tensor) -> torch.Tensor:
        spec, rules = rule.spec, rule.scores
        q = lmi_kernels.rope_and_store(
            qkv,
            None if spec.rotary is None else self.tables[spec.rotary],
            self.positions,
            self.slot_mapping,
            pool,
            rule.num_heads,
            rule.norms,
            rule.norm_eps,
        )
        out = torch.empty_like(q)
        num_singles = len(self.singles.seq_lens)
        if num_singles:
            lmi_kernels.decode_attention(
                q[:num_singles], pool, self.singles, self.decode_plans[spec.window], rules, out[:num_singles]
            )
        if self.chunks is not None and self.cu_seqlens_q is not None:
            lmi_kernels.varlen_attention(
                q[num_singles:],
                pool,
                self.chunks,
                self.cu_seqlens_q,
                self.max_query_len,
                rules,
                out[num_singles:],
            )
        return out.view(len(q), -1)
