"""What the two allocators have in common."""

from __future__ import annotations

from engines.mpi.scheduler.sequence import Sequence


class SequenceBlocks:
    """Who was admitted, and arithmetic with blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._holders: dict[Sequence, None] = {}

    @property
    def num_unfilled_slots(self) -> int:
        """A block that several sequences hold is full, so none of its slots is counted."""
        size = self.block_size
        return sum(len(s.block_table) * size - s.num_computed_tokens for s in self._holders)

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-max(num_tokens - 1, 1) // self.block_size)

    def _check_admission(self, sequence: Sequence) -> None:
        if sequence in self._holders:
            raise ValueError(f"sequence {sequence.id!r} was admitted already")

    def _check_fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> None:
        if source is sequence or source not in self._holders or sequence not in self._holders:
            raise ValueError("a fork needs two different sequences, both admitted")
        if source.request.tenant != sequence.request.tenant:
            raise ValueError("a sequence cannot take over the pages of another tenant's")
        if num_tokens >= sequence.max_num_tokens:
            raise ValueError(
                f"sequence {sequence.id!r} comes to {sequence.max_num_tokens} tokens, too few for {num_tokens}"
            )
        if num_tokens > source.num_computed_tokens:
            raise ValueError(
                f"{num_tokens} tokens of sequence {source.id!r} asked for, {source.num_computed_tokens} are computed"
            )
