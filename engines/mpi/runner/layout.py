"""The layout of a step: a plan's numbers in the order of computation, as plain arrays without tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.mpi.cache.block_tables import Numbers
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Layout of a step: sequences of one token first, then chunks. Token rows are in the same order."""

    rows: Numbers
    """[num_seqs]: rows of the block tables."""
    starts: Numbers
    """[num_seqs]: position of each sequence's first token."""
    cu_seqlens_q: Numbers
    """[num_seqs + 1]: bounds of each sequence's token rows."""
    owners: Numbers
    """[num_tokens]: index of the sequence of each token row."""
    token_ids: Numbers
    """[num_tokens]: token ids, or `UNKNOWN_TOKEN`."""
    num_singles: int
    sampled: Numbers
    """[num_sampled]: indices of the sequences that sample, in the plan's order."""
    scored: Numbers
    """[num_scored]: indices of the sequences whose prompt log-probabilities are wanted, in the plan's order."""

    @property
    def num_seqs(self) -> int:
        return len(self.rows)

    @property
    def query_lens(self) -> Numbers:
        return np.diff(self.cu_seqlens_q)

    @property
    def max_query_len(self) -> int:
        """Maximum length of the chunks; 0 without any."""
        return int(self.query_lens[self.num_singles :].max(initial=0))

    @property
    def positions(self) -> Numbers:
        """[num_tokens]: position of each token row in its sequence."""
        counting = np.arange(len(self.owners), dtype=np.int32)
        return (self.starts - self.cu_seqlens_q[:-1])[self.owners] + counting

    @property
    def wanted_counts(self) -> Numbers:
        """[num_seqs]: number of each sequence's last token rows whose hidden states are wanted."""
        counts = np.zeros(self.num_seqs, dtype=np.int32)
        counts[self.sampled] = 1
        counts[self.scored] = self.query_lens[self.scored]
        return counts

    @property
    def wanted_rows(self) -> Numbers:
        """[num_wanted]: these token rows. At least one, because kernels compute at least one row."""
        counts = self.wanted_counts
        wanted = np.arange(counts.sum(), dtype=np.int32)
        left_out = (self.cu_seqlens_q[1:] - counts.cumsum(dtype=np.int32)).repeat(counts)
        return wanted + left_out if len(wanted) else np.zeros(1, dtype=np.int32)

    @property
    def last_rows(self) -> Numbers:
        """[num_sampled]: row of each sampling sequence's last token among the wanted rows."""
        return self.wanted_counts.cumsum(dtype=np.int32)[self.sampled] - 1

    @property
    def scored_ranges(self) -> list[range]:
        """[num_scored]: rows for which the log-probability of the next token is wanted, among the wanted rows."""
        ends = self.wanted_counts.cumsum()
        return [range(int(ends[i] - self.query_lens[i]), int(ends[i])) for i in self.scored]

    def slots(self, tables: Numbers, block_size: int) -> Numbers:
        """[num_tokens]: slots in the KV cache. tables: block tables, [rows, columns]."""
        positions = self.positions
        return tables[self.rows[self.owners], positions // block_size] * block_size + positions % block_size


def lay_out(plan: StepPlan) -> StepLayout:
    """Lay out a plan. Single tokens come first; otherwise the order is the plan's.

    Raises ValueError: the number of tokens in the plan is inconsistent.
    """
    num_tokens = sum(plan.query_lens)
    if plan.num_tokens != num_tokens:
        raise ValueError(f"the plan has {plan.num_tokens} tokens but declares {num_tokens}")
    rows, starts, wants, token_ids = map(_numbers, (plan.rows, plan.starts, plan.wants, plan.token_ids))
    sampled, scored = np.flatnonzero(wants & WANT_LOGITS), np.flatnonzero(wants & WANT_PROMPT_LOGPROBS)
    if num_tokens == len(rows):  # as in most steps: one token each
        counting = np.arange(num_tokens + 1, dtype=np.int32)
        return StepLayout(
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
    at = np.argsort(query_lens > 1, kind="stable")
    places = np.empty_like(at)
    places[at] = np.arange(len(at))
    lens = query_lens[at]
    cu_seqlens_q = np.concatenate((np.zeros(1, dtype=np.int32), lens.cumsum(dtype=np.int32)))
    owners = np.repeat(np.arange(len(lens), dtype=np.int32), lens)
    first_tokens = (query_lens.cumsum() - query_lens)[at]
    tokens = token_ids[first_tokens[owners] + np.arange(len(owners)) - cu_seqlens_q[owners]]
    return StepLayout(
        rows[at],
        starts[at],
        cu_seqlens_q,
        owners,
        tokens,
        int((lens == 1).sum()),
        places[sampled].astype(np.int32),
        places[scored].astype(np.int32),
    )


def concatenate_aligned(arrays: Sequence[Numbers]) -> tuple[Numbers, list[tuple[int, int]]]:
    """Concatenate arrays, each starting at a multiple of 16 bytes, as the kernels require. Returns the numbers and,
    for each array, its length with and without padding."""
    lengths = [(-(-len(array) // 4) * 4, len(array)) for array in arrays]
    numbers = np.zeros(sum(padded for padded, _ in lengths), dtype=np.int32)
    at = 0
    for array, (padded, length) in zip(arrays, lengths, strict=True):
        numbers[at : at + length] = array
        at += padded
    return numbers, lengths


def _numbers(values: Sequence[int]) -> Numbers:
    """Convert to int32, twice as fast as numpy converts a list."""
    packed = bytearray(4 * len(values))
    struct.pack_into(f"{len(values)}i", packed, 0, *values)
    return np.frombuffer(packed, dtype=np.int32)
