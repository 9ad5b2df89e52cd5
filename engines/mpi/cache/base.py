"""The interface of the block managers, and the code that both share.

`PagedBlocks` allocates blocks as tokens come, counts the holders of each block, and may keep full pages for other
sequences with the same prefix. `ContiguousBlocks` takes a consecutive run for the worst case at admission, which can
fail although enough blocks are free. The last possible token of a sequence is never computed, so it needs no slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from engines.mpi.cache.block_pool import BlockPool
from engines.mpi.cache.window import Window, blocks_needed
from engines.mpi.scheduler.sequence import Sequence


class BlockManager(ABC):
    """Allocator of KV cache blocks. `num_free + num_cached + num_used == num_blocks` after every call."""

    def __init__(self, num_blocks: int, block_size: int, window: Window | None = None) -> None:
        """window: None if a sequence keeps all its blocks until it ends."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._window = window
        self._pool = BlockPool(num_blocks)
        self._reserved: dict[Sequence, int] = {}
        """Blocks reserved for each admitted sequence and not taken yet."""

    @property
    def num_free(self) -> int:
        """Free blocks, reserved or not."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache holds. When blocks are needed, the least recently used are evicted
        first."""
        return 0

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold, each counted once."""
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_reserved(self) -> int:
        """Blocks reserved for sequences and not taken yet."""
        return sum(self._reserved.values())

    @property
    def num_unfilled_slots(self) -> int:
        """Slots of allocated blocks without a token: the current waste of this allocator."""
        # A block that several sequences hold is full, so none of its slots counts.
        size = self.block_size
        return sum(len(s.block_table) * size - s.num_computed_tokens for s in self._reserved)

    def blocks_needed(self, num_tokens: int, whole: bool = False) -> int:
        """Return the maximum number of blocks that a sequence of `num_tokens` at its end holds at once.

        whole: ignore windows, as reservations of beams do.
        """
        return blocks_needed(num_tokens, self.block_size, None if whole else self._window)

    @abstractmethod
    def admit(self, sequence: Sequence, reserve: bool, watermark: int = 0) -> bool:
        """Admit a sequence that holds nothing. Returns False, with nothing changed, when there is no room now.

        The sequence gets the pages of its tokens that the prefix cache has, except the page of its last token. It gets
        none if the request wants log-probabilities of its prompt.

        reserve: reserve all blocks that the sequence may hold at once, up to `max_num_tokens`, on top of all earlier
        reservations. Without a reservation there must be room for the current tokens, as many as are held at once, and
        for `watermark` more blocks on top of all reservations.

        Raises:
            ValueError: the sequence was admitted already.
        """

    @abstractmethod
    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the block table to cover the sequence's first `num_tokens` tokens, after `free_out_of_window`. Returns
        False when blocks are missing, which never happens within a reservation."""

    def free_out_of_window(self, sequence: Sequence) -> None:  # noqa: B027
        """Free the blocks whose tokens have left every window: no token still to be computed sees them."""

    @abstractmethod
    def cache_full_pages(self, sequence: Sequence) -> None:
        """Let others share the full pages of a sequence. The logits of its settled tokens are known to be finite."""

    @abstractmethod
    def fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]] | None:
        """Replace what an admitted sequence holds with the source's first `num_tokens` computed tokens. Full pages are
        shared where possible.

        Returns the (source, destination) blocks to copy before the next step. Returns None, with nothing changed, when
        a block is missing, which cannot happen with a reservation, or when the source has freed a needed block that
        left its window.

        Raises:
            ValueError: the source has computed fewer tokens, the sequence cannot hold as many, was not admitted, or
                holds more without a reservation, or the two belong to different tenants.
        """

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Free the sequence's blocks and reservations, and set its `num_computed_tokens` to 0. Idempotent."""

    @abstractmethod
    def check(self) -> None:
        """Raise RuntimeError when the accounting is inconsistent: a block is lost, held twice or reserved twice."""

    def _check_admission(self, sequence: Sequence) -> None:
        if sequence in self._reserved:
            raise ValueError(f"sequence {sequence.id!r} is already admitted")

    def _check_fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> None:
        if source is sequence or source not in self._reserved or sequence not in self._reserved:
            raise ValueError("a fork needs two different sequences, both admitted")
        if source.request.tenant != sequence.request.tenant:
            raise ValueError("a sequence cannot share the pages of another tenant")
        if num_tokens >= sequence.max_num_tokens:
            raise ValueError(
                f"sequence {sequence.id!r} has at most {sequence.max_num_tokens} tokens, fewer than {num_tokens}"
            )
        if num_tokens > source.num_computed_tokens:
            raise ValueError(
                f"{num_tokens} tokens of sequence {source.id!r} were requested, but only"
                f" {source.num_computed_tokens} are computed"
            )
