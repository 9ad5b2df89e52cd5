"""Sequences' blocks: two allocators over one layout and one attention.

`PagedBlocks` hands blocks out as tokens come, counts who holds each, and may keep full pages for others with the same
prefix. `ContiguousBlocks` takes a consecutive run for the worst case at once, which can fail though enough blocks are
free. The last token that a sequence may come to is never computed, so it needs no slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engines.mpi.cache.contiguous_blocks import ContiguousBlocks
from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.scheduler.sequence import Sequence


class BlockManager(Protocol):
    """What the scheduler asks for. `num_free + num_cached + num_used == num_blocks` after every call."""

    block_size: int
    num_blocks: int

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing, promised or not."""

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache holds: given up, least recently used first, when others are needed."""

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold, each counted once."""

    @property
    def num_evictions(self) -> int:
        """Pages that the prefix cache has given up so far because their blocks were needed."""

    @property
    def num_unfilled_slots(self) -> int:
        """Slots of handed-out blocks in which no token stands yet: what this way of allocating wastes now."""

    def blocks_needed(self, num_tokens: int) -> int:
        """Blocks for a sequence of `num_tokens` at its end, whose last token is never computed."""

    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        """Let a sequence in that holds nothing; False, and nothing done, when there is no room now.

        What the prefix cache has of its tokens becomes its own at once (`block_table`, `num_computed_tokens`,
        `num_kept_pages`); at least its last token is left to be computed, and nothing is taken from the cache when
        the request wants log-probabilities of its prompt.

        reserve: all that it may need at worst (`max_num_tokens`) is promised, beside all earlier promises.
        Else there must be room now for the tokens that it has, with `watermark` blocks to spare beyond that and
        beyond all promises; nothing is promised. So a lone sequence that fills the pool needs a watermark of 0.

        Raises:
            ValueError: it was admitted already.
        """

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the block table reach over the sequence's first `num_tokens` tokens; False, and nothing done, when
        there are no blocks for it. Never False within what was promised."""

    def keep(self, sequence: Sequence) -> None:
        """All that is computed of the sequence is known to be finite: others may find its full pages from now on.

        `num_kept_pages` are its pages known to be finite: each is in the prefix cache in this block, or was there in
        another sequence's block when it was offered."""

    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        """Give an admitted sequence, which holds nothing or what the prefix cache gave it, the source's first
        `num_tokens` computed tokens, and set its `num_computed_tokens`. Full pages are shared where that is possible.
        Returns the (source, destination) blocks to be copied before the next step; None, and nothing done, when a
        block is missing.

        What is shared lessens what the sequence was promised. A promise covers the copied page too.

        Raises:
            ValueError: the source has not computed so many tokens, the sequence was not admitted, has more than their
                full pages or may not come to so many, or the two are different tenants'.
        """

    def replace(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]]:
        """As `fork`, for a sequence with a reservation, which gives up what it holds. Never lacks a block.

        Raises:
            ValueError: as `fork`, or it was admitted without a reservation.
        """

    def release(self, sequence: Sequence) -> None:
        """Take back blocks and promises; `num_computed_tokens` becomes 0. Idempotent."""

    def forget(self, blocks: Iterable[int]) -> None:
        """What stands in these blocks is not to be found by anybody any more, be they in use or not.

        The pages that follow them in the prefix cache are not found either, until the forgotten ones are computed and
        kept again; they are replaced then."""

    def check(self) -> None:
        """Raises RuntimeError when the books do not agree: a block lost, held twice over, or promised twice."""


def make_block_manager(
    num_blocks: int, block_size: int, paged: bool, prefix_caching: bool = False
) -> BlockManager:
    """The allocator that `option.paged_attention` asks for; only the paged one has a prefix cache."""
    if paged:
        return PagedBlocks(num_blocks, block_size, prefix_caching)
    return ContiguousBlocks(num_blocks, block_size)
