"""The sliding window of a model in which every layer has one: pages are freed when all their tokens have left it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    num_tokens: int
    """Latest tokens that a token sees, itself included, in the layer that sees the most."""
    max_chunk: int
    """Most tokens of one sequence in a step."""

    def first_token(self, position: int) -> int:
        """Return the position of the first token that a token at this position sees."""
        return max(0, position + 1 - self.num_tokens)

    def most_blocks(self, block_size: int) -> int:
        """Return how many blocks a sequence holds at most: those that the first token of a chunk sees, wherever in a
        page it begins, and the chunk's."""
        return -(-(self.num_tokens + self.max_chunk - 2) // block_size) + 1
