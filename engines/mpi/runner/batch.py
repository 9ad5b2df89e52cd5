"""A step plan as tensors, for a CPU without native kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engines.layers.rotary import RotaryTables, cosines_and_sines
from engines.layers.step_attention import TorchStepAttention
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan
from lmi_kernels import SequenceRows

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, flattened, in the plan's order."""

    input_ids: torch.Tensor
    """[num_tokens], int64."""
    attention: TorchStepAttention
    sample_rows: torch.Tensor
    """[num_sampled], int64: the row of each sampling sequence's last token, in the plan's order."""
    prompt_rows: torch.Tensor | None
    """[sum of prompt_lens], int64: the rows of all tokens whose next token's log-probability is wanted, in the plan's
    order; None where nobody asks."""
    prompt_lens: tuple[int, ...]
    """[sequences with WANT_PROMPT_LOGPROBS]: how many of these rows are whose."""


def make_batch(plan: StepPlan, tables: BlockTables, rotary_tables: RotaryTables, block_size: int) -> Batch:
    """Lay a plan's sequences out as rows, one after the other. `tables` have the plan's updates already.

    Raises:
        ValueError: the plan does not hold as many tokens as it says.
    """
    rows, starts, query_lens, wants = (
        np.asarray(numbers, dtype=np.int64)
        for numbers in (plan.rows, plan.starts, plan.query_lens, plan.wants)
    )
    if len(plan.token_ids) != query_lens.sum():
        raise ValueError(f"the plan holds {len(plan.token_ids)} tokens and says {query_lens.sum()}")
    first_rows = _starts(query_lens)
    owners = np.repeat(np.arange(len(rows)), query_lens)
    positions = (starts - first_rows)[owners] + np.arange(len(owners))
    blocks = tables.entries[rows[owners], positions // block_size].astype(np.int64)
    at = torch.from_numpy(positions)
    attention = TorchStepAttention(
        torch.from_numpy(blocks * block_size + positions % block_size),
        {kind: cosines_and_sines(table, at) for kind, table in rotary_tables.items()},
        tuple(
            SequenceRows.of(first_row, query_len, kv_len, _blocks(tables, row, -(-kv_len // block_size)))
            for row, first_row, query_len, kv_len in zip(
                *(each.tolist() for each in (rows, first_rows, query_lens, starts + query_lens)), strict=True
            )
        ),
    )
    scored = np.flatnonzero(wants & WANT_PROMPT_LOGPROBS)
    prompt_rows = None
    if len(scored):
        prompt_rows = torch.from_numpy(_ranges(first_rows[scored], query_lens[scored]))
    return Batch(
        input_ids=torch.from_numpy(np.array(plan.token_ids, dtype=np.int64)),
        attention=attention,
        sample_rows=torch.from_numpy((first_rows + query_lens - 1)[np.flatnonzero(wants & WANT_LOGITS)]),
        prompt_rows=prompt_rows,
        prompt_lens=tuple(query_lens[scored].tolist()),
    )


def _blocks(tables: BlockTables, row: int, count: int) -> torch.Tensor:
    """Only what counts: what stands behind it in a row is somebody else's."""
    return torch.from_numpy(tables.entries[row, :count].astype(np.int64))


def _starts(lens: Numbers) -> Numbers:
    """Where each of consecutive ranges of these lengths begins."""
    return lens.cumsum() - lens


def _ranges(firsts: Numbers, lens: Numbers) -> Numbers:
    """The numbers [firsts[i], firsts[i] + lens[i]) of all i, one range behind the other."""
    return np.repeat(firsts - _starts(lens), lens) + np.arange(lens.sum())
