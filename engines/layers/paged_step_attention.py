"""Attention on a GPU, with Triton kernels and block tables on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

import lmi_kernels
from engines.layers.attention_params import AttentionParams
from engines.layers.rotary import RotaryTables
from lmi_kernels import DecodePlan, PagedSequences


@dataclass(frozen=True, slots=True)
class PagedStepAttention:
    """A `StepAttention` for GPUs.

    The rows of sequences with a single token come first, then those of prefill chunks. All tensors are on the device.
    """

    positions: torch.Tensor
    """[num_rows], int64."""
    slot_mapping: torch.Tensor
    """[num_rows], int64; -1: padding."""
    tables: RotaryTables
    decodes: PagedSequences
    """Sequences with one token in this step. May be empty."""
    decode_plans: Mapping[int | None, DecodePlan]
    """Plan of the decodes for each sliding window in the model. Empty if there are no decodes."""
    prefills: PagedSequences | None = None
    """Sequences with several tokens in this step; None: there are none."""
    cu_seqlens_q: torch.Tensor | None = None
    """[num_prefills + 1], int32: bounds of the chunks' rows, relative to the first chunk's first row."""
    max_query_len: int = 0
    """Length of the longest chunk."""
    wanted_rows: torch.Tensor | None = None
    """Int64."""

    def attend(self, qkv: torch.Tensor, params: AttentionParams, pool: torch.Tensor) -> torch.Tensor:
        spec, score_rules = params.spec, params.score_rules
        q = lmi_kernels.rope_and_store(
            qkv,
            None if spec.rotary is None else self.tables[spec.rotary],
            self.positions,
            self.slot_mapping,
            pool,
            params.num_heads,
            params.norms,
            params.norm_eps,
        )
        out = torch.empty_like(q)
        num_decodes = len(self.decodes.seq_lens)
        if num_decodes:
            lmi_kernels.decode_attention(
                q[:num_decodes],
                pool,
                self.decodes,
                self.decode_plans[spec.window],
                score_rules,
                out[:num_decodes],
            )
        if self.prefills is not None and self.cu_seqlens_q is not None:
            lmi_kernels.varlen_attention(
                q[num_decodes:],
                pool,
                self.prefills,
                self.cu_seqlens_q,
                self.max_query_len,
                score_rules,
                out[num_decodes:],
            )
        return out.view(len(q), -1)
