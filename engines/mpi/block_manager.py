"""Sequences' blocks: two allocators over one pool, one layout and one attention.

Both promise at admission what a sequence may need at worst, so nothing running is ever preempted. `PagedBlocks`
hands the blocks out as tokens come; `ContiguousBlocks` takes a consecutive run at once, which can fail though
enough blocks are free. The last token of a sequence is never computed, so it needs no slot.
"""

from __future__ import annotations

from typing import Protocol

from engines.mpi.block_pool import BlockPool
from engines.mpi.sequence import Sequence


class BlockManager(Protocol):
    """What the scheduler asks for."""

    block_size: int
    num_blocks: int

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing, promised or not."""

    @property
    def num_unfilled_slots(self) -> int:
        """Slots of handed-out blocks in which no token stands yet: what this way of allocating wastes now."""

    def blocks_needed(self, num_tokens: int) -> int:
        """Blocks for a sequence of `num_tokens` at its end."""

    def admit(self, sequence: Sequence) -> bool:
        """Promise all that the sequence may need; False, and nothing done, when that is not to be had now."""

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the block table reach over the sequence's first `num_tokens` tokens."""

    def release(self, sequence: Sequence) -> None:
        """Take back blocks and promises. Idempotent."""


class _Blocks:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._holders: dict[str, Sequence] = {}

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_unfilled_slots(self) -> int:
        return sum(
            len(s.block_table) * self.block_size - s.num_computed_tokens for s in self._holders.values()
        )

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-max(num_tokens - 1, 1) // self.block_size)

    def release(self, sequence: Sequence) -> None:
        self._pool.give_back(sequence.block_table)
        sequence.block_table = []
        sequence.num_reserved_blocks = 0
        self._holders.pop(sequence.id, None)


class PagedBlocks(_Blocks):
    """Blocks as tokens come."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._num_promised = 0

    def admit(self, sequence: Sequence) -> bool:
        needed = self.blocks_needed(sequence.max_num_tokens)
        if self._num_promised + needed > self.num_blocks:
            return False
        self._num_promised += needed
        sequence.num_reserved_blocks = needed
        self._holders[sequence.id] = sequence
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        missing = -(-num_tokens // self.block_size) - len(sequence.block_table)
        if missing > 0:
            sequence.block_table.extend(self._pool.take(missing))

    def release(self, sequence: Sequence) -> None:
        self._num_promised -= sequence.num_reserved_blocks
        super().release(sequence)


class ContiguousBlocks(_Blocks):
    """One consecutive run a sequence."""

    def admit(self, sequence: Sequence) -> bool:
        run = self._pool.take_run(self.blocks_needed(sequence.max_num_tokens))
        if run is None:
            return False
        sequence.block_table = run
        sequence.num_reserved_blocks = len(run)
        self._holders[sequence.id] = sequence
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Nothing to do: the run covers the worst case."""


def make_block_manager(num_blocks: int, block_size: int, paged: bool) -> BlockManager:
    """The allocator that `option.paged_attention` asks for."""
    return PagedBlocks(num_blocks, block_size) if paged else ContiguousBlocks(num_blocks, block_size)
