"""The allocator without paged attention: one run of consecutive blocks per sequence."""

from __future__ import annotations

from engines.mpi.cache.base import BlockManager
from engines.mpi.scheduler.sequence import Sequence


class ContiguousBlocks(BlockManager):
    """One consecutive run per sequence, large enough for its worst case. Nothing is shared, reserved or cached."""

    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        self._check_admission(sequence)
        run = self._pool.allocate_run(self.blocks_needed(sequence.max_num_tokens))
        if run is None:
            return False
        self._reserved[sequence] = 0
        sequence.block_table = list(run)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        return num_tokens <= len(sequence.block_table) * self.block_size

    def cache_full_pages(self, sequence: Sequence) -> None:
        """Do nothing: there is no prefix cache."""

    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        self._check_fork(source, sequence, num_tokens)
        count = -(-num_tokens // self.block_size)
        sequence.num_computed_tokens = num_tokens
        return list(zip(source.block_table[:count], sequence.block_table[:count], strict=True))

    def release(self, sequence: Sequence) -> None:
        if sequence not in self._reserved:
            return
        del self._reserved[sequence]
        self._pool.free(_run(sequence))
        sequence.block_table = []
        sequence.num_computed_tokens = 0

    def check(self) -> None:
        owned = self._pool.free_blocks()
        for sequence in self._reserved:
            run = _run(sequence)
            if sequence.block_table != list(run):
                raise RuntimeError(f"the blocks of sequence {sequence.id!r} are not consecutive")
            if not owned.isdisjoint(run):
                raise RuntimeError(f"a block of sequence {sequence.id!r} is free or shared")
            owned.update(run)
        if len(owned) != self.num_blocks:
            raise RuntimeError(f"{self.num_blocks - len(owned)} blocks have leaked")


def _run(sequence: Sequence) -> range:
    first = sequence.block_table[0]
    return range(first, first + len(sequence.block_table))
