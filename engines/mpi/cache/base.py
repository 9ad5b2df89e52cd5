"""What a block manager does, and what the two have in common.

`PagedBlocks` hands blocks out as tokens come, counts who holds each, and may keep full pages for others with the same
prefix. `ContiguousBlocks` takes a consecutive run for the worst case at once, which can fail though enough blocks are
free. The last token that a sequence may come to is never computed, so it needs no slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from engines.mpi.cache.window import Window, blocks_needed
from engines.mpi.scheduler.sequence import Sequence


class BlockManager(ABC):
    """Sequences' blocks. `num_free + num_cached + num_used == num_blocks` after every call."""

    def __init__(self, num_blocks: int, block_size: int, window: Window | None = None) -> None:
        """window: None if a sequence keeps all its blocks to its end."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._window = window
        self._promised: dict[Sequence, int] = {}
        """Of all admitted sequences: blocks that each may still ask for and will get."""

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Blocks that hold nothing, promised or not."""

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache holds: given up, least recently used first, when others are needed."""
        return 0

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold, each counted once."""
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_promised(self) -> int:
        """Blocks that are promised to sequences and not taken yet."""
        return 0

    @property
    def num_unfilled_slots(self) -> int:
        """Slots of handed-out blocks in which no token stands yet: what this way of allocating wastes now."""
        # A block that several sequences hold is full, so none of its slots is counted.
        size = self.block_size
        return sum(len(s.block_table) * size - s.num_computed_tokens for s in self._promised)

    def blocks_needed(self, num_tokens: int, whole: bool = False) -> int:
        """Return how many blocks a sequence of `num_tokens` at its end holds at most at once.

        whole: without regard to windows, as beams reserve.
        """
        return blocks_needed(num_tokens, self.block_size, None if whole else self._window)

    @abstractmethod
    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        """Let a sequence in that holds nothing; False, and nothing done, when there is no room now.

        It gets what the prefix cache has of its tokens, but for the last one, and unless the request wants
        log-probabilities of its prompt.

        reserve: promise all that it may hold at once, up to `max_num_tokens`, beside all earlier promises. Else there
        must be room now for the tokens that it has, as many as are held at once, and for `watermark` blocks beyond
        that and all promises.

        Raises:
            ValueError: it was admitted already.
        """

    @abstractmethod
    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the block table reach over the sequence's first `num_tokens` tokens; False when there are no blocks for
        it. Never False within what was promised. `free_unseen` comes first."""

    def free_unseen(self, sequence: Sequence) -> None:  # noqa: B027
        """Free the blocks whose tokens have left every window: no token that is not computed yet sees them."""

    @abstractmethod
    def keep(self, sequence: Sequence) -> None:
        """All that is computed of the sequence is known to be finite: others may find its full pages from now on."""

    @abstractmethod
    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        """Give an admitted sequence the source's first `num_tokens` computed tokens in place of what it holds. Full
        pages are shared where that is possible.

        Returns the (source, destination) blocks to be copied before the next step; None, and nothing done, when a
        block is missing, which cannot be with a reservation, or when the source has freed one that left its window.

        Raises:
            ValueError: the source has not computed so many tokens, the sequence may not come to so many, was not
                admitted, or holds more without a reservation, or the two are different tenants'.
        """

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Take back blocks and promises; `num_computed_tokens` becomes 0. Idempotent."""

    @abstractmethod
    def check(self) -> None:
        """Raises RuntimeError when the accounting does not agree: a block lost, held twice over, or promised twice."""

    def _check_admission(self, sequence: Sequence) -> None:
        if sequence in self._promised:
            raise ValueError(f"sequence {sequence.id!r} was admitted already")

    def _check_fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> None:
        if source is sequence or source not in self._promised or sequence not in self._promised:
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
