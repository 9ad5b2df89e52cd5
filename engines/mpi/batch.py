"""A step plan as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engines.kv_cache import AttentionMetadata
from engines.layers.rotary import RotaryTable
from engines.mpi.step_plan import ScheduledSequence, StepPlan
from lmi_kernels import batch_invariant_rows
from lmi_kernels.attention_plan import AttentionGroup, GroupLimits, decode_order, plan_chunk, plan_decodes


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, flattened: single tokens first, in the order attention likes, then chunks."""

    input_ids: torch.Tensor
    """[num_rows], int64; rows beyond the tokens are padding."""
    metadata: AttentionMetadata
    sample_rows: torch.Tensor
    """[num_sampled], int64: the row of each sampling sequence's last token, in the plan's order."""


def make_batch(
    plan: StepPlan, rotary: RotaryTable, limits: GroupLimits, contiguous: bool, device: torch.device
) -> Batch:
    """Lay a plan's sequences out as rows, and group them for attention."""
    singles = [i for i, s in enumerate(plan.sequences) if s.query_len == 1]
    lens = [plan.sequences[i].seq_len for i in singles]
    tables = [plan.sequences[i].block_table for i in singles]
    order = decode_order(lens, tables, contiguous)
    ordered = [singles[i] for i in order]
    chunks = [i for i, s in enumerate(plan.sequences) if s.query_len > 1]
    sequences = [plan.sequences[i] for i in (*ordered, *chunks)]

    groups: list[AttentionGroup] = []
    if singles:
        groups += plan_decodes(
            [lens[i] for i in order], [tables[i] for i in order], limits, contiguous, device
        )
    row = len(singles)
    for chunk in sequences[len(singles) :]:
        groups.append(plan_chunk(row, chunk.query_len, chunk.seq_len, chunk.block_table, limits, device))
        row += chunk.query_len
    return _to_tensors(plan, sequences, [*ordered, *chunks], tuple(groups), rotary, limits.block_size, device)


def _to_tensors(
    plan: StepPlan,
    sequences: Sequence[ScheduledSequence],
    places: Sequence[int],
    groups: tuple[AttentionGroup, ...],
    rotary: RotaryTable,
    block_size: int,
    device: torch.device,
) -> Batch:
    """`sequences` in the order of rows; `places[i]` is where sequence i stands in the plan."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    last_row: dict[int, int] = {}
    for place, s in zip(places, sequences, strict=True):
        token_ids.extend(s.token_ids)
        positions.extend(range(s.start, s.seq_len))
        slots.extend(
            s.block_table[p // block_size] * block_size + p % block_size for p in range(s.start, s.seq_len)
        )
        last_row[place] = len(token_ids) - 1
    num_tokens = len(token_ids)
    padding = [0] * (batch_invariant_rows(num_tokens) - num_tokens)
    cos, signed_sin = rotary.lookup(torch.tensor(positions + padding, device=device))
    sample_rows = [last_row[i] for i, s in enumerate(plan.sequences) if s.sample]
    return Batch(
        input_ids=torch.tensor(token_ids + padding, device=device),
        metadata=AttentionMetadata(num_tokens, torch.tensor(slots, device=device), cos, signed_sin, groups),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64, device=device),
    )
