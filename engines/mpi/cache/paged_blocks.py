"""Paged attention's allocator: blocks as tokens come, shared where they are full."""

from __future__ import annotations

from collections.abc import Iterable

from engines.mpi.cache.block_pool import BlockPool
from engines.mpi.cache.prefix_cache import PrefixCache
from engines.mpi.cache.sequence_blocks import SequenceBlocks
from engines.mpi.scheduler.sequence import Sequence


class PagedBlocks(SequenceBlocks):
    """Counts who holds each block, and may keep full pages for others with the same prefix.

    Promises are counted in blocks still to be taken. They never exceed the blocks that can be had, free or idle in
    the prefix cache, so what was promised is always there.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = False) -> None:
        super().__init__(num_blocks, block_size)
        self.prefix_cache = PrefixCache(block_size) if prefix_caching else None
        self._pool = BlockPool(num_blocks)
        self._ref_counts = [0] * num_blocks
        self._num_promised = 0

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        return self.prefix_cache.num_idle if self.prefix_cache is not None else 0

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_evictions(self) -> int:
        return self.prefix_cache.num_evictions if self.prefix_cache is not None else 0

    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        self._check_admission(sequence)
        worst = self.blocks_needed(sequence.max_num_tokens)
        needed = worst if reserve else -(-sequence.num_tokens // self.block_size) + watermark
        room = self._num_available - self._num_promised
        found: list[int] = []
        if self.prefix_cache is not None and sequence.request.sampling.prompt_logprobs is None:
            if needed - max(0, sequence.num_tokens - 1) // self.block_size > room:
                return False  # Though all that may be found were found, and others held it.
            found = self.prefix_cache.find(sequence)
            if needed - len(found) > room:
                return False  # In any case, without a look at all of them.
            found = list(found)
        num_idle = sum(not self._ref_counts[block] for block in found)
        if needed - len(found) + num_idle > room:
            return False
        if found and self.prefix_cache is not None:
            self.prefix_cache.hold(sequence, found)
        for block in found:
            self._ref_counts[block] += 1
        self._holders[sequence] = None
        sequence.block_table = found
        sequence.num_computed_tokens = len(found) * self.block_size
        if reserve:
            sequence.num_promised_blocks = worst - len(found)
            self._num_promised += sequence.num_promised_blocks
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        if num_tokens <= len(sequence.block_table) * self.block_size:
            return True
        blocks = self._take(sequence, -(-num_tokens // self.block_size) - len(sequence.block_table))
        if blocks is None:
            return False
        sequence.block_table.extend(blocks)
        return True

    def keep(self, sequence: Sequence) -> None:
        if (
            self.prefix_cache is not None
            and sequence.num_settled_tokens >= (sequence.num_kept_pages + 1) * self.block_size
        ):
            self.prefix_cache.keep(sequence)

    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        self._check_fork(source, sequence, num_tokens)
        own = sequence.block_table
        num_full, num_copied = divmod(num_tokens, self.block_size)
        if len(own) > num_full:
            raise ValueError(
                f"sequence {sequence.id!r} holds more than the full pages of {num_tokens} tokens"
            )
        # What it shares it will not ask for. If that was promised, so is the copied page, and it will be there.
        self._settle(sequence, min(num_full - len(own), sequence.num_promised_blocks))
        copied = self._take(sequence, 1) if num_copied else []
        if copied is None:
            return None
        shared = source.block_table[:num_full]
        for block in shared:
            self._ref_counts[block] += 1
        self._drop(own)
        sequence.block_table = shared + copied
        sequence.num_computed_tokens = num_tokens
        if self.prefix_cache is not None:
            self.prefix_cache.share(source, sequence)
        return [(source.block_table[num_full], block) for block in copied]

    def replace(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]]:
        self._check_fork(source, sequence, num_tokens)
        own = sequence.block_table
        if sequence.num_promised_blocks + len(own) < self.blocks_needed(sequence.max_num_tokens):
            raise ValueError(f"sequence {sequence.id!r} was admitted without a reservation")
        num_full, num_copied = divmod(num_tokens, self.block_size)
        shared = source.block_table[:num_full]
        for block in shared:
            self._ref_counts[block] += 1
        idle = self._unreferenced(own)
        if self.prefix_cache is not None:
            idle = self.prefix_cache.release(sequence, idle)
        self._pool.give_back(idle)
        # What it holds and what it may still ask for come to the same as before.
        self._settle(sequence, num_full - len(own))
        copied = (self._take(sequence, 1) or []) if num_copied else []
        sequence.block_table = shared + copied
        sequence.num_computed_tokens = num_tokens
        sequence.page_keys.clear()
        sequence.num_kept_pages = 0
        if self.prefix_cache is not None:
            self.prefix_cache.share(source, sequence)
        return [(source.block_table[num_full], block) for block in copied]

    def release(self, sequence: Sequence) -> None:
        if sequence not in self._holders:
            return
        del self._holders[sequence]
        self._settle(sequence, sequence.num_promised_blocks)
        idle = self._unreferenced(sequence.block_table)
        if self.prefix_cache is not None:
            idle = self.prefix_cache.release(sequence, idle)
        self._pool.give_back(idle)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        sequence.num_kept_pages = 0

    def forget(self, blocks: Iterable[int]) -> None:
        if self.prefix_cache is not None:
            self._pool.give_back(self.prefix_cache.forget(blocks))

    def check(self) -> None:
        free = self._pool.free_blocks()
        counts = [0] * self.num_blocks
        for sequence in self._holders:
            if len(set(sequence.block_table)) < len(sequence.block_table):
                raise RuntimeError(f"a block stands twice in the table of sequence {sequence.id!r}")
            for block in sequence.block_table:
                counts[block] += 1
        if counts != self._ref_counts:
            wrong = next(block for block, count in enumerate(counts) if count != self._ref_counts[block])
            raise RuntimeError(
                f"block {wrong} is held by {counts[wrong]} sequences, its count says {self._ref_counts[wrong]}"
            )
        held = {block for block, count in enumerate(counts) if count}
        if self.prefix_cache is not None:
            self.prefix_cache.check(held)
        if not free.isdisjoint(held) or len(free) + self.num_cached + len(held) != self.num_blocks:
            raise RuntimeError(
                f"{len(free)} free, {self.num_cached} cached and {len(held)} used blocks are not all {self.num_blocks}"
            )
        promised = [sequence.num_promised_blocks for sequence in self._holders]
        if sum(promised) != self._num_promised or min(promised, default=0) < 0:
            raise RuntimeError(f"promises of {promised} blocks do not come to {self._num_promised}")
        if self._num_promised > self._num_available:
            raise RuntimeError(f"{self._num_promised} blocks are promised, {self._num_available} can be had")

    @property
    def _num_available(self) -> int:
        """Blocks that can be had, promised or not."""
        return self.num_free + self.num_cached

    def _take(self, sequence: Sequence, count: int) -> list[int] | None:
        """Blocks out of what was promised to the sequence, then out of what was promised to nobody; None when that is
        too little."""
        promised = min(count, sequence.num_promised_blocks)
        if count - promised > self._num_available - self._num_promised:
            return None
        self._settle(sequence, promised)
        num_free = self._pool.num_free
        blocks = self._pool.take(min(count, num_free))
        if count > num_free and self.prefix_cache is not None:
            blocks += sorted(self.prefix_cache.evict(count - num_free))
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def _settle(self, sequence: Sequence, count: int) -> None:
        """So many of the blocks promised to the sequence are not due any more."""
        sequence.num_promised_blocks -= count
        self._num_promised -= count

    def _unreferenced(self, table: list[int]) -> list[int]:
        """Count one holder less for these blocks; returns those that have none now, the last first."""
        idle = []
        for block in reversed(table):
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                idle.append(block)
        return idle

    def _drop(self, table: list[int]) -> None:
        idle = self._unreferenced(table)
        if self.prefix_cache is not None:
            idle = self.prefix_cache.set_idle(idle)
        self._pool.give_back(idle)
