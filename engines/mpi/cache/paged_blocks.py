"""Paged attention's allocator: blocks as tokens come, shared where they are full."""

from __future__ import annotations

from collections.abc import Iterable

from engines.mpi.cache.base import BlockManager
from engines.mpi.cache.block_pool import BlockPool
from engines.mpi.cache.prefix_cache import PrefixCache
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.sequence import Sequence


class PagedBlocks(BlockManager):
    """Counts who holds each block, and may keep full pages for others with the same prefix.

    Promises are counted in blocks still to be taken. They never exceed the blocks that can be had, free or idle in
    the prefix cache, so what was promised is always there.
    """

    def __init__(
        self, num_blocks: int, block_size: int, prefix_caching: bool = False, window: Window | None = None
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.prefix_cache = PrefixCache(block_size, window) if prefix_caching else None
        self._window = window
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
    def num_promised(self) -> int:
        return self._num_promised

    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        self._check_admission(sequence)
        worst = self.blocks_needed(sequence.max_num_tokens)
        needed = worst if reserve else -(-sequence.num_tokens // self.block_size)
        watermark = 0 if reserve else watermark
        room = self._room - watermark
        found: list[int] = []
        if self.prefix_cache is not None and sequence.request.sampling.prompt_logprobs is None:
            if needed - max(0, sequence.num_tokens - 1) // self.block_size > room:
                return False  # Though all that may be found were found, and others held it.
            found = self.prefix_cache.find(sequence)
            if self._window is None and needed - len(found) > room:
                return False  # In any case, without a look at all of them.
            found = list(found)
        num_hit_tokens = len(found) * self.block_size
        held = found[self._first_block(num_hit_tokens) :]
        num_missing = needed - len(found)
        if self._window is not None and not reserve:
            num_missing = min(num_missing, self._window.most_blocks(self.block_size) - len(held))
        num_idle = sum(not self._ref_counts[block] for block in held)
        if num_missing + num_idle > room:
            return False
        if found and self.prefix_cache is not None:
            self.prefix_cache.hold(sequence, found, len(found) - len(held))
        for block in held:
            self._ref_counts[block] += 1
        sequence.block_table = found
        sequence.num_freed_blocks = len(found) - len(held)
        sequence.num_computed_tokens = num_hit_tokens
        self._promised[sequence] = 0
        if reserve:
            self._settle(sequence, len(found) - worst)
        return True

    def free_unseen(self, sequence: Sequence) -> None:
        first = self._first_block(sequence.num_computed_tokens)
        if first > sequence.num_freed_blocks:
            self._give_up(sequence.block_table[sequence.num_freed_blocks : first])
            sequence.num_freed_blocks = first

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        self.free_unseen(sequence)
        if num_tokens <= len(sequence.block_table) * self.block_size:
            return True
        blocks = self._take(sequence, -(-num_tokens // self.block_size) - len(sequence.block_table))
        if blocks is None:
            return False
        sequence.block_table.extend(blocks)
        return True

    def keep(self, sequence: Sequence) -> None:
        if self.prefix_cache is not None:
            self.prefix_cache.keep(sequence)

    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        self._check_fork(source, sequence, num_tokens)
        num_own = len(sequence.block_table)
        num_full, num_copied = divmod(num_tokens, self.block_size)
        first = self._first_block(num_tokens)
        if first < source.num_freed_blocks:
            return None
        reserved = self._promised[sequence] + num_own >= self.blocks_needed(sequence.max_num_tokens)
        if not reserved and num_own > num_full:
            raise ValueError(
                f"sequence {sequence.id!r} was admitted without a reservation, and holds more than the full pages"
                f" of {num_tokens} tokens"
            )
        if not reserved and num_copied and self._room < 1:
            return None
        for block in source.block_table[first:num_full]:
            self._ref_counts[block] += 1
        self._drop(sequence)
        if reserved:
            # What it holds and what it may still ask for come to the same as before.
            self._settle(sequence, num_full - num_own)
        copied = (self._take(sequence, 1) or []) if num_copied else []
        sequence.block_table = source.block_table[:num_full] + copied
        sequence.num_freed_blocks = first
        sequence.num_computed_tokens = num_tokens
        if self.prefix_cache is not None:
            self.prefix_cache.share(source, sequence)
        return [(source.block_table[num_full], block) for block in copied]

    def release(self, sequence: Sequence) -> None:
        if sequence not in self._promised:
            return
        self._settle(sequence, self._promised[sequence])
        del self._promised[sequence]
        self._drop(sequence)
        sequence.block_table = []
        sequence.num_freed_blocks = 0
        sequence.num_computed_tokens = 0

    def check(self) -> None:
        free = self._pool.free_blocks()
        counts = [0] * self.num_blocks
        for sequence in self._promised:
            table = sequence.block_table
            own = table[sequence.num_freed_blocks :]
            if len(set(own)) < len(own):
                raise RuntimeError(f"a block stands twice in the table of sequence {sequence.id!r}")
            if len(table) * self.block_size < sequence.num_computed_tokens:
                raise RuntimeError(f"sequence {sequence.id!r} has computed more than its blocks hold")
            if sequence.num_freed_blocks > self._first_block(sequence.num_computed_tokens):
                raise RuntimeError(f"sequence {sequence.id!r} has freed a block that its next token sees")
            for block in own:
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
        promised = [*self._promised.values()]
        if sum(promised) != self._num_promised or min(promised, default=0) < 0:
            raise RuntimeError(f"promises of {promised} blocks do not come to {self._num_promised}")
        if self._room < 0:
            raise RuntimeError(
                f"{self._num_promised} blocks are promised, {-self._room} more than can be had"
            )

    @property
    def _room(self) -> int:
        """Blocks that can be had and are promised to nobody."""
        return self.num_free + self.num_cached - self._num_promised

    def _take(self, sequence: Sequence, count: int) -> list[int] | None:
        """Blocks out of what was promised to the sequence, then out of what was promised to nobody; None when that is
        too little."""
        promised = min(count, self._promised[sequence])
        if count - promised > self._room:
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
        self._promised[sequence] -= count
        self._num_promised -= count

    def _drop(self, sequence: Sequence) -> None:
        """It holds none of its blocks any more."""
        self._give_up(reversed(sequence.block_table[sequence.num_freed_blocks :]))
        if self.prefix_cache is not None:
            self.prefix_cache.forget(sequence)

    def _give_up(self, blocks: Iterable[int]) -> None:
        """One sequence less holds them."""
        idle = []
        for block in blocks:
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                idle.append(block)
        if self.prefix_cache is not None:
            idle = self.prefix_cache.retain(idle)
        self._pool.give_back(idle)

    def _first_block(self, position: int) -> int:
        """Return the place in the block table of the first block that a token at this position sees."""
        return 0 if self._window is None else self._window.first_token(position) // self.block_size
