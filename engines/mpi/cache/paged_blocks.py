"""The allocator for paged attention: blocks are allocated as tokens come, and full blocks are shared."""

from __future__ import annotations

from engines.mpi.cache.base import BlockManager
from engines.mpi.cache.prefix_cache import PrefixCache
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.sequence import Sequence


class PagedBlocks(BlockManager):
    """Allocator that counts the holders of each block, and may keep full pages for other sequences with the same
    prefix.

    Reservations are counted in blocks still to be taken. They never exceed the available blocks, free or idle in the
    prefix cache, so a reserved block is always available.

    With a window, a sequence with a reservation frees blocks and takes others in their place. A block that it frees may
    be shared and stay in use by other sequences. So each such sequence is charged for every block that it holds. All
    other sequences together are charged once for a block.
    """

    def __init__(
        self, num_blocks: int, block_size: int, prefix_caching: bool = False, window: Window | None = None
    ) -> None:
        """prefix_caching: whether to add pages to the prefix cache. Otherwise it stays empty."""
        super().__init__(num_blocks, block_size, window)
        self.prefix_cache = PrefixCache(block_size, window)
        self._prefix_caching = prefix_caching
        self._ref_counts = [0] * num_blocks
        """Number of sequences that hold each block, without those in `_sliding`."""
        self._sliding_counts = [0] * num_blocks
        """Number of sequences in `_sliding` that hold each block."""
        self._sliding: set[Sequence] = set()
        """Sequences with a reservation and a window. For each block that leaves the window, they reserve another."""
        self._num_charged = 0
        """Blocks charged to the sequences that hold them."""
        self._num_reserved = 0

    @property
    def num_cached(self) -> int:
        return self.prefix_cache.num_idle

    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        self._check_admission(sequence)
        worst = self.blocks_needed(sequence.max_num_tokens, whole=True)
        slides = reserve and self._window is not None and not sequence.is_beam
        needed = worst if reserve else -(-sequence.num_tokens // self.block_size)
        watermark = 0 if reserve else watermark
        room = self._room - watermark
        hits: list[int] = []
        if sequence.request.sampling.prompt_logprobs is None:
            if not slides and needed - max(0, sequence.num_tokens - 1) // self.block_size > room:
                return False  # Does not fit even if all its full pages are cached and held by others.
            hits = self.prefix_cache.find(sequence)
            if self._window is None and needed - len(hits) > room:
                return False  # Does not fit even if others hold all pages found. Saves a look at each page.
            hits = list(hits)
        num_hit_tokens = len(hits) * self.block_size
        held = hits[self._first_block(num_hit_tokens) :]
        num_missing = needed - len(hits)
        if self._window is not None and (slides or not reserve):
            num_missing = min(num_missing, self._window.max_blocks(self.block_size) - len(held))
        num_uncharged = len(held) if slides else sum(not self._ref_counts[block] for block in held)
        if num_missing + num_uncharged > room:
            return False
        if hits:
            self.prefix_cache.hold(sequence, hits, len(hits) - len(held))
        if slides:
            self._sliding.add(sequence)
        self._add_holder(sequence, held)
        sequence.block_table = hits
        sequence.num_freed_blocks = len(hits) - len(held)
        sequence.num_computed_tokens = num_hit_tokens
        self._reserved[sequence] = 0
        if reserve:
            self._reduce_reservation(sequence, -num_missing)
        return True

    def free_out_of_window(self, sequence: Sequence) -> None:
        first = self._first_block(sequence.num_computed_tokens)
        if first > sequence.num_freed_blocks:
            self._remove_holder(sequence, sequence.block_table[sequence.num_freed_blocks : first])
            sequence.num_freed_blocks = first
            self._renew_reservation(sequence)

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        self.free_out_of_window(sequence)
        if num_tokens <= len(sequence.block_table) * self.block_size:
            return True
        blocks = self._allocate(sequence, -(-num_tokens // self.block_size) - len(sequence.block_table))
        if blocks is None:
            return False
        sequence.block_table.extend(blocks)
        return True

    def cache_full_pages(self, sequence: Sequence) -> None:
        if self._prefix_caching:
            self.prefix_cache.add_full_pages(sequence)

    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        self._check_fork(source, sequence, num_tokens)
        num_own = len(sequence.block_table)
        num_full, num_copied = divmod(num_tokens, self.block_size)
        first = self._first_block(num_tokens)
        if first < source.num_freed_blocks:
            return None
        slides = sequence in self._sliding
        worst = self.blocks_needed(sequence.max_num_tokens, whole=True)
        has_reservation = slides or self._reserved[sequence] + num_own >= worst
        if not has_reservation and num_own > num_full:
            raise ValueError(
                f"sequence {sequence.id!r} was admitted without a reservation, and holds more than the full pages"
                f" of {num_tokens} tokens"
            )
        if not has_reservation and num_copied and self._room < 1:
            return None
        shared = source.block_table[:num_full]
        self._add_holder(sequence, shared[first:])
        self._drop(sequence)
        sequence.block_table, sequence.num_freed_blocks = shared, first
        if slides:
            self._renew_reservation(sequence)
        elif has_reservation:
            # Held and reserved blocks add up to the same as before.
            self._reduce_reservation(sequence, num_full - num_own)
        copied = (self._allocate(sequence, 1) or []) if num_copied else []
        sequence.block_table = shared + copied
        sequence.num_computed_tokens = num_tokens
        self.prefix_cache.share(source, sequence)
        return [(source.block_table[num_full], block) for block in copied]

    def release(self, sequence: Sequence) -> None:
        if sequence not in self._reserved:
            return
        self._reduce_reservation(sequence, self._reserved[sequence])
        del self._reserved[sequence]
        self._drop(sequence)
        self._sliding.discard(sequence)
        sequence.block_table = []
        sequence.num_freed_blocks = 0
        sequence.num_computed_tokens = 0

    def check(self) -> None:
        free = self._pool.free_blocks()
        counts, sliding_counts = [0] * self.num_blocks, [0] * self.num_blocks
        for sequence in self._reserved:
            table = sequence.block_table
            own = table[sequence.num_freed_blocks :]
            if len(set(own)) < len(own):
                raise RuntimeError(f"the block table of sequence {sequence.id!r} contains a block twice")
            if len(table) * self.block_size < sequence.num_computed_tokens:
                raise RuntimeError(f"sequence {sequence.id!r} has computed more than its blocks hold")
            if sequence.num_freed_blocks > self._first_block(sequence.num_computed_tokens):
                raise RuntimeError(
                    f"sequence {sequence.id!r} has freed a block that its next token attends to"
                )
            if sequence in self._sliding and self._reserved[sequence] != self._due(sequence):
                raise RuntimeError(f"sequence {sequence.id!r} has {self._reserved[sequence]} blocks reserved")
            for block in own:
                (sliding_counts if sequence in self._sliding else counts)[block] += 1
        for found, known in ((counts, self._ref_counts), (sliding_counts, self._sliding_counts)):
            if found != known:
                wrong = next(block for block, count in enumerate(found) if count != known[block])
                raise RuntimeError(
                    f"block {wrong} is held by {found[wrong]} sequences, but its reference count is {known[wrong]}"
                )
        held = {i for i in range(self.num_blocks) if counts[i] or sliding_counts[i]}
        num_charged = sum(sliding_counts) + sum(count > 0 for count in counts)
        if num_charged != self._num_charged:
            raise RuntimeError(
                f"sequences are charged for {num_charged} blocks, but {self._num_charged} are counted"
            )
        self.prefix_cache.check(held)
        if not free.isdisjoint(held) or len(free) + self.num_cached + len(held) != self.num_blocks:
            raise RuntimeError(
                f"{len(free)} free, {self.num_cached} cached and {len(held)} used blocks do not add up to"
                f" {self.num_blocks}"
            )
        reserved = [*self._reserved.values()]
        if sum(reserved) != self._num_reserved or min(reserved, default=0) < 0:
            raise RuntimeError(f"reserved blocks {reserved} do not add up to {self._num_reserved}")
        if self._room < 0:
            raise RuntimeError(
                f"{self._num_reserved} blocks are reserved, {-self._room} more than are available"
            )

    @property
    def _room(self) -> int:
        """Available blocks that are not reserved."""
        return self.num_blocks - self._num_charged - self._num_reserved

    def _allocate(self, sequence: Sequence, count: int) -> list[int] | None:
        """Allocate blocks, first those reserved for the sequence, then others. Returns None when there are too few."""
        reserved = min(count, self._reserved[sequence])
        if count - reserved > self._room:
            return None
        self._reduce_reservation(sequence, reserved)
        num_free = self._pool.num_free
        blocks = self._pool.allocate(min(count, num_free))
        if count > num_free:
            blocks += sorted(self.prefix_cache.evict(count - num_free))
        self._add_holder(sequence, blocks)
        return blocks

    def _add_holder(self, sequence: Sequence, blocks: list[int]) -> None:
        """Add the sequence as a holder of the blocks."""
        if sequence in self._sliding:
            self._num_charged += len(blocks)
            for block in blocks:
                self._sliding_counts[block] += 1
            return
        for block in blocks:
            self._num_charged += not self._ref_counts[block]
            self._ref_counts[block] += 1

    def _due(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence in `_sliding` may still take before it frees one."""
        num_held = len(sequence.block_table) - sequence.num_freed_blocks
        num_missing = self.blocks_needed(sequence.max_num_tokens, whole=True) - len(sequence.block_table)
        return min(num_missing, self.blocks_needed(sequence.max_num_tokens) - num_held)

    def _renew_reservation(self, sequence: Sequence) -> None:
        """Reserve new blocks for a sequence in `_sliding`, in place of those that it has freed."""
        if sequence in self._sliding:
            self._reduce_reservation(sequence, self._reserved[sequence] - self._due(sequence))

    def _reduce_reservation(self, sequence: Sequence, count: int) -> None:
        """Reduce the number of blocks reserved for the sequence by `count`, which may be negative."""
        self._reserved[sequence] -= count
        self._num_reserved -= count

    def _drop(self, sequence: Sequence) -> None:
        """Release all blocks that the sequence holds."""
        self._remove_holder(sequence, sequence.block_table[sequence.num_freed_blocks :][::-1])
        self.prefix_cache.forget(sequence)

    def _remove_holder(self, sequence: Sequence, blocks: list[int]) -> None:
        """Remove the sequence as a holder of the blocks. Blocks without a holder stay in the prefix cache or become
        free."""
        slides = sequence in self._sliding
        counts = self._sliding_counts if slides else self._ref_counts
        idle = []
        for block in blocks:
            counts[block] -= 1
            self._num_charged -= slides or not counts[block]
            if not (self._ref_counts[block] or self._sliding_counts[block]):
                idle.append(block)
        self._pool.free(self.prefix_cache.retain(idle))

    def _first_block(self, position: int) -> int:
        """Return the block-table index of the first block that a token at this position sees."""
        return 0 if self._window is None else self._window.first_token(position) // self.block_size
