"""A plan's numbers in the order in which a GPU takes them: plain arrays, no tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """Sequences of one token first, then chunks; token rows in the same order."""

    rows: Numbers
    """[num_seqs]: of the device's tables."""
    starts: Numbers
    """[num_seqs]: position of each one's first token."""
    cu_seqlens_q: Numbers
    """[num_seqs + 1]: its token rows."""
    owners: Numbers
    """[num_tokens]: whose each token row is."""
    token_ids: Numbers
    """[num_tokens]: or `UNKNOWN_TOKEN`."""
    num_singles: int
    sampled: Numbers
    """[num_sampled]: which sequences sample, in the plan's order."""
    scored: Numbers
    """[num_scored]: whose prompts' log-probabilities are wanted, in the plan's order."""

    @property
    def num_seqs(self) -> int:
        return len(self.rows)

    @property
    def max_query_len(self) -> int:
        """Of the chunks; 0 without any."""
        lens = np.diff(self.cu_seqlens_q)[self.num_singles :]
        return int(lens.max()) if len(lens) else 0


def lay_out(plan: StepPlan) -> DeviceLayout:
    """
    Raises:
        ValueError: the plan does not hold as many tokens as it says.
    """
    num_tokens = sum(plan.query_lens)
    if plan.num_tokens != num_tokens:
        raise ValueError(f"the plan holds {plan.num_tokens} tokens and says {num_tokens}")
    rows, starts, wants, token_ids = map(_numbers, (plan.rows, plan.starts, plan.wants, plan.token_ids))
    sampled, scored = np.flatnonzero(wants & WANT_LOGITS), np.flatnonzero(wants & WANT_PROMPT_LOGPROBS)
    if num_tokens == len(rows):  # as in most steps: one token each
        counting = np.arange(num_tokens + 1, dtype=np.int32)
        return DeviceLayout(
            rows,
            starts,
            counting,
            counting[:-1],
            token_ids,
            num_tokens,
            sampled.astype(np.int32),
            scored.astype(np.int32),
        )
    query_lens = _numbers(plan.query_lens)
    # Stable: most plans are in this order already.
    order = np.argsort(query_lens > 1, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    lens = query_lens[order]
    cu_seqlens_q = np.concatenate((np.zeros(1, dtype=np.int32), lens.cumsum(dtype=np.int32)))
    owners = np.repeat(np.arange(len(lens), dtype=np.int32), lens)
    first_tokens = (query_lens.cumsum() - query_lens)[order]
    tokens = token_ids[first_tokens[owners] + np.arange(len(owners)) - cu_seqlens_q[owners]]
    return DeviceLayout(
        rows[order],
        starts[order],
        cu_seqlens_q,
        owners,
        tokens,
        int((lens == 1).sum()),
        places[sampled].astype(np.int32),
        places[scored].astype(np.int32),
    )


def table_triples(updates: Sequence[int]) -> Numbers:
    """A plan's `table_updates` as [num_entries, 3]: row, index, block.

    Raises:
        ValueError: a group is cut short, or says that something stands before the table's begin.
    """
    numbers: list[int] = []
    at = 0
    while at < len(updates):
        row, first, count = updates[at : at + 3]
        blocks = updates[at + 3 : at + 3 + count]
        if min(row, first, count) < 0 or len(blocks) != count:
            raise ValueError(
                f"a table update of row {row}, entries {first} to {first + count}, cannot be applied"
            )
        for index, block in enumerate(blocks, first):
            numbers += (row, index, block)
        at += 3 + count
    return _numbers(numbers).reshape(-1, 3)


def aligned(
    arrays: Sequence[Numbers],
) -> tuple[Numbers, list[tuple[int, int]]]:
    """One behind the other, each at a multiple of 16 bytes: kernels are compiled for that."""
    lengths = [(-(-len(array) // 4) * 4, len(array)) for array in arrays]
    numbers = np.zeros(sum(padded for padded, _ in lengths), dtype=np.int32)
    at = 0
    for array, (padded, length) in zip(arrays, lengths, strict=True):
        numbers[at : at + length] = array
        at += padded
    return numbers, lengths


def _numbers(values: Sequence[int]) -> Numbers:
    """Twice as fast as numpy reads a list."""
    packed = bytearray(4 * len(values))
    struct.pack_into(f"{len(values)}i", packed, 0, *values)
    return np.frombuffer(packed, dtype=np.int32)
