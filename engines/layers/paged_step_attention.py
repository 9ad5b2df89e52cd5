"""A step's attention by Triton kernels, through block tables on the device: for GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

import lmi_kernels
from engines.layers.step_attention import Heads
from lmi_kernels import DecodePlan, PagedSequences, ScoreRules


@dataclass(frozen=True, slots=True)
class PagedStepAttention:
    """Token rows: single tokens first, one a sequence, then chunks. All tensors on the device."""

    positions: torch.Tensor
    """[num_rows], int64."""
    slot_mapping: torch.Tensor
    """[num_rows], int64; -1: padding."""
    cos_sin: torch.Tensor
    """[num_positions, head_dim], fp32: cosines, then sines."""
    rules: ScoreRules
    singles: PagedSequences
    """Those of one token, the first rows; may be none."""
    decode_plan: DecodePlan | None
    """Of the singles; None: there are none."""
    chunks: PagedSequences | None = None
    """Those of several tokens; None: there are none."""
    cu_seqlens_q: torch.Tensor | None = None
    """[num_chunks + 1], int32, of the chunks' rows, counted from the first chunk's first row."""
    max_query_len: int = 0
    """Of the chunks."""

    def with_chunks(
        self, chunks: PagedSequences, cu_seqlens_q: torch.Tensor, max_query_len: int
    ) -> PagedStepAttention:
        return replace(self, chunks=chunks, cu_seqlens_q=cu_seqlens_q, max_query_len=max_query_len)

    def attend(self, qkv: torch.Tensor, heads: Heads, pool: torch.Tensor) -> torch.Tensor:
        q = lmi_kernels.rope_and_store(
            qkv,
            self.cos_sin,
            self.positions,
            self.slot_mapping,
            pool,
            heads.num_heads,
            heads.norms,
            heads.eps,
        )
        out = torch.empty_like(q)
        num_singles = len(self.singles.seq_lens)
        if self.decode_plan is not None:
            lmi_kernels.decode_attention(
                q[:num_singles], pool, self.singles, self.decode_plan, self.rules, out[:num_singles]
            )
        if self.chunks is not None and self.cu_seqlens_q is not None:
            lmi_kernels.varlen_attention(
                q[num_singles:],
                pool,
                self.chunks,
                self.cu_seqlens_q,
                self.max_query_len,
                self.rules,
                out[num_singles:],
            )
        return out.view(len(q), -1)
