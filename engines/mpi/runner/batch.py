"""A step plan as tensors, for a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engines.layers.rotary import RotaryTable
from engines.layers.step_attention import GroupedStepAttention
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan
from lmi_kernels import Workspace, batch_invariant_rows
from lmi_kernels.attention.grouped_plan import (
    AttentionGroup,
    GroupLimits,
    decode_order,
    plan_chunk,
    plan_decodes,
)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, flattened: single tokens first, in the order attention likes, then chunks."""

    input_ids: torch.Tensor
    """[num_rows], int64; rows beyond the tokens are padding."""
    attention: GroupedStepAttention
    sample_rows: torch.Tensor
    """[num_sampled], int64: the row of each sampling sequence's last token, in the plan's order."""
    prompt_rows: torch.Tensor | None
    """[sum of prompt_lens], int64: the rows of all tokens whose next token's log-probability is wanted, in the plan's
    order; None where nobody asks."""
    prompt_lens: tuple[int, ...]
    """[sequences with WANT_PROMPT_LOGPROBS]: how many of these rows are whose."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The plan's sequences by number, and where their rows begin."""

    rows: Numbers
    """[num_seqs], as all here: of the block tables."""
    starts: Numbers
    query_lens: Numbers
    wants: Numbers
    order: Numbers
    """The sequences as their rows of the batch follow each other."""
    first_rows: Numbers
    """By place in the plan."""


def make_batch(
    plan: StepPlan,
    tables: BlockTables,
    rotary: RotaryTable,
    limits: GroupLimits,
    contiguous: bool,
    workspace: Workspace,
) -> Batch:
    """Lay a plan's sequences out as rows, and group them for attention. `tables` have the plan's updates already.

    Raises:
        ValueError: the plan does not hold as many tokens as it says.
    """
    layout, groups = _lay_out(plan, tables, limits, contiguous)
    token_ids, positions, slots = _tokens(plan, tables, layout, limits.block_size)
    num_tokens = len(token_ids)
    num_rows = batch_invariant_rows(num_tokens, dense=limits.batch_invariant)
    padding = np.zeros(num_rows - num_tokens, dtype=np.int64)
    cos, signed_sin = rotary.lookup(torch.from_numpy(np.concatenate((positions, padding))))
    sampled = np.flatnonzero(layout.wants & WANT_LOGITS)
    scored = np.flatnonzero(layout.wants & WANT_PROMPT_LOGPROBS)
    prompt_rows = None
    if len(scored):
        lens = layout.query_lens[scored]
        prompt_rows = torch.from_numpy(_ranges(layout.first_rows[scored], lens))
    return Batch(
        input_ids=torch.from_numpy(np.concatenate((token_ids, padding))),
        attention=GroupedStepAttention(
            num_tokens, torch.from_numpy(slots), cos, signed_sin, groups, workspace
        ),
        sample_rows=torch.from_numpy((layout.first_rows + layout.query_lens - 1)[sampled]),
        prompt_rows=prompt_rows,
        prompt_lens=tuple(layout.query_lens[scored].tolist()),
    )


def _lay_out(
    plan: StepPlan, tables: BlockTables, limits: GroupLimits, contiguous: bool
) -> tuple[_Layout, tuple[AttentionGroup, ...]]:
    rows, starts, query_lens, wants = (
        np.asarray(numbers, dtype=np.int64)
        for numbers in (plan.rows, plan.starts, plan.query_lens, plan.wants)
    )
    seq_lens = starts + query_lens
    num_blocks = -(-seq_lens // limits.block_size)
    lens = seq_lens.tolist()
    # Only what counts is read: what stands behind it in a row is somebody else's.
    used = [
        tables.entries[row, :count].tolist()
        for row, count in zip(rows.tolist(), num_blocks.tolist(), strict=True)
    ]
    singles = np.flatnonzero(query_lens == 1).tolist()
    chunks = np.flatnonzero(query_lens > 1).tolist()
    if singles:
        order = decode_order([lens[i] for i in singles], [used[i] for i in singles], contiguous)
        singles = [singles[i] for i in order]
    places = np.array([*singles, *chunks], dtype=np.int64)
    first_rows = np.empty_like(places)
    first_rows[places] = _starts(query_lens[places])
    groups: list[AttentionGroup] = []
    if singles:
        groups += plan_decodes([lens[i] for i in singles], [used[i] for i in singles], limits, contiguous)
    for i in chunks:
        groups.append(plan_chunk(int(first_rows[i]), int(query_lens[i]), lens[i], used[i], limits))
    return _Layout(rows, starts, query_lens, wants, places, first_rows), tuple(groups)


def _tokens(
    plan: StepPlan, tables: BlockTables, layout: _Layout, block_size: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Ids, positions and slots, each [num_tokens], by row of the batch."""
    query_lens = layout.query_lens
    if len(plan.token_ids) != query_lens.sum():
        raise ValueError(f"the plan holds {len(plan.token_ids)} tokens and says {query_lens.sum()}")
    owners = np.repeat(layout.order, query_lens[layout.order])
    offsets = np.arange(len(owners)) - layout.first_rows[owners]
    token_ids = np.asarray(plan.token_ids, dtype=np.int64)[_starts(query_lens)[owners] + offsets]
    positions = layout.starts[owners] + offsets
    blocks = tables.entries[layout.rows[owners], positions // block_size].astype(np.int64)
    return token_ids, positions, blocks * block_size + positions % block_size


def _starts(lens: Numbers) -> Numbers:
    """Where each of consecutive ranges of these lengths begins."""
    return lens.cumsum() - lens


def _ranges(firsts: Numbers, lens: Numbers) -> Numbers:
    """The numbers [firsts[i], firsts[i] + lens[i]) of all i, one range behind the other."""
    return np.repeat(firsts - _starts(lens), lens) + np.arange(lens.sum())
