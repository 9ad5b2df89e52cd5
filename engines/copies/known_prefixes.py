"""Prompt prefixes that each copy has computed, as far as this web process knows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 64
"""Tokens per block, the unit in which prefixes are compared."""
MAX_BLOCKS = 16_384
"""Maximum number of blocks in the map: a million tokens, about 2 MB."""


class KnownPrefixes:
    """Bounded map from blocks of prompts to the copies that have computed them. The least recently used are dropped
    first.

    A block is identified by a hash chained over all tokens before it. A collision, or a block that a copy's own prefix
    cache has evicted, only leads to a worse choice of copy.
    """

    def __init__(
        self, num_copies: int, block_tokens: int = BLOCK_TOKENS, max_blocks: int = MAX_BLOCKS
    ) -> None:
        """max_blocks: 0 if the copies have no prefix cache."""
        self._num_copies = num_copies
        self._block_tokens = block_tokens
        self._max_blocks = max_blocks
        self._copies: OrderedDict[int, int] = OrderedDict()
        """Bit mask of copies, by the hash of a block."""

    def __len__(self) -> int:
        return len(self._copies)

    def block_hashes(self, tenant: str, token_ids: Sequence[int]) -> list[int]:
        """Return the hashes of a prompt's full blocks. Tenants share no prefixes."""
        size = self._block_tokens
        chained = hash(tenant)
        hashes = []
        for end in range(size, min(len(token_ids), size * self._max_blocks) + 1, size):
            chained = hash((chained, tuple(token_ids[end - size : end])))
            hashes.append(chained)
        return hashes

    def matched_tokens(self, hashes: Sequence[int]) -> list[int]:
        """Return the length of the longest known prefix in tokens, for each copy."""
        lengths = [0] * self._num_copies
        holders = (1 << self._num_copies) - 1
        for block in hashes:
            holders &= self._copies.get(block, 0)
            if not holders:
                break
            for copy in range(self._num_copies):
                lengths[copy] += self._block_tokens * (holders >> copy & 1)
        return lengths

    def add(self, hashes: Sequence[int], copy: int) -> None:
        """Record that a copy computes this prompt."""
        # The first block is added last, so a prompt loses its last blocks first.
        for block in reversed(hashes):
            self._copies[block] = self._copies.get(block, 0) | 1 << copy
            self._copies.move_to_end(block)
        while len(self._copies) > self._max_blocks:
            self._copies.popitem(last=False)

    def forget(self, copy: int) -> None:
        """Forget all prefixes of a copy that has ended."""
        for block, holders in list(self._copies.items()):
            if others := holders & ~(1 << copy):
                self._copies[block] = others
            else:
                del self._copies[block]
