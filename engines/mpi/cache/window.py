"""Number of blocks that a sequence holds at once, with and without a sliding window.

When every layer has a window, pages are freed once all their tokens have left it.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.config import CacheConfig


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding window of a model in which every layer has one."""

    num_tokens: int
    """Number of latest tokens that a token sees, including itself, in the layer with the largest window."""
    max_chunk: int
    """Maximum number of tokens of one sequence in a step."""

    @classmethod
    def of(cls, num_tokens: int | None, max_chunk: int) -> Window | None:
        """Create the window; None for a model without one.

        num_tokens: as in `ModelConfig.window`.
        """
        return None if num_tokens is None else cls(num_tokens, max_chunk)

    def first_token(self, position: int) -> int:
        """Return the position of the first token that a token at this position sees."""
        return max(0, position + 1 - self.num_tokens)

    def max_blocks(self, block_size: int) -> int:
        """Return the maximum number of blocks that a sequence holds: the blocks that the first token of a chunk
        sees, at any offset in its page, and the blocks of the chunk."""
        return -(-(self.num_tokens + self.max_chunk - 2) // block_size) + 1


def blocks_needed(num_tokens: int, block_size: int, window: Window | None) -> int:
    """Return the maximum number of blocks that a sequence of `num_tokens` at its end holds at once. Its last token
    is never computed. window: None if it frees no block before its end."""
    whole = -(-max(num_tokens - 1, 1) // block_size)
    return whole if window is None else min(whole, window.max_blocks(block_size))


def request_blocks(num_tokens: int, cache: CacheConfig, window: int | None, max_chunk: int) -> int:
    """Return the maximum number of blocks that a request of `num_tokens` holds at once, with a slot for each token.

    window, max_chunk: as in `Window`.
    """
    return blocks_needed(
        num_tokens + 1, cache.block_size, Window.of(window, max_chunk) if cache.paged else None
    )
