"""A request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens and blocks. Changed by the scheduler and the block manager only.

    Invariant: num_computed_tokens < num_tokens while it runs; a step computes some of the tokens between, and one
    whose step reaches the last token gains the next.
    """

    request: Request
    token_ids: list[int] = field(init=False)
    """Prompt, then output."""
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    block_table: list[int] = field(default_factory=list)
    num_reserved_blocks: int = 0
    """Blocks promised at admission, those of the block table included."""
    scheduled_time: float | None = None
    first_token_time: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def max_num_tokens(self) -> int:
        """What the sequence may come to at worst."""
        return self.num_prompt_tokens + self.request.sampling.max_new_tokens
