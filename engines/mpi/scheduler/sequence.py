"""A request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import PromptLogprob, Request
from engines.sampling.batch import SamplingRow


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens and blocks. Changed by the scheduler and the block manager only.

    Invariant: num_computed_tokens < num_tokens while it runs; a step computes some of the tokens between, and one
    whose step reaches the last token gains the next.
    """

    request: Request
    number: int = 0
    """Order of arrival."""
    id: str = ""
    """The request's; a beam's own."""
    stop_token_ids: tuple[int, ...] = field(init=False)
    token_ids: list[int] = field(init=False)
    """Prompt, then output. One list from beginning to end."""
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    num_in_flight: int = 0
    """Of the computed ones, those of steps that still run."""
    num_pending: int = 0
    """Tokens at the end of `token_ids` that those steps will give: each stands as `UNKNOWN_TOKEN`."""
    done: bool = False
    """It has got its one end: what a late step still gives is nobody's."""
    num_verified_tokens: int = 0
    """Of the computed ones, those that are known to be finite: a later token was sampled from them."""
    max_num_tokens: int = field(init=False)
    """What the sequence may come to at worst."""
    may_give_way: bool = field(init=False)
    """Beams go on in lockstep and share pages, so they reserve what they need in every mode."""
    sampling_row: SamplingRow = field(init=False)
    """What sampling is told of it, in every step the same."""

    row: int = -1
    """Its place among the running ones; -1 while it waits."""
    block_table: list[int] = field(default_factory=list)
    num_told_blocks: int = 0
    """Entries of the block table that the ranks know."""
    num_promised_blocks: int = 0
    """Blocks that it may still ask for and will get."""
    page_keys: list[bytes] = field(default_factory=list)
    """Keys of its first full pages in the prefix cache, as far as they were needed; they only depend on its tokens."""
    num_kept_pages: int = 0
    """So many of its first pages stand in the prefix cache, or were found there."""
    sibling: Sequence | None = None
    """One with the same prompt: once that is computed, its pages are taken over."""
    companions: list[Sequence] = field(default_factory=list)
    """Beam search: those that are admitted and removed with it (`beam_group.py`)."""

    num_cached_tokens: int = 0
    """Tokens that the prefix cache or a sibling gave when it was first admitted."""
    num_ever_computed: int = 0
    """The largest `num_computed_tokens` that it ever had: what lies below is computed again after a preemption."""
    num_preemptions: int = 0
    last_turn: int = 0
    """Number of its last turn, where the running sequences take turns."""
    scheduled_time: float | None = None
    first_token_time: float | None = None
    last_plain_start: int = -1
    """What follows a token before this place is not the last token, and there is nothing to tell of it but itself."""
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)
    """Those computed so far, where the request asked."""

    def __post_init__(self) -> None:
        # Copies of what is looked at in every step.
        sampling = self.request.sampling
        self.id = self.id or self.request.id
        self.stop_token_ids = sampling.stop_token_ids
        self.token_ids = list(self.request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = self.num_prompt_tokens + sampling.max_new_tokens
        self.may_give_way = sampling.num_beams == 1
        self.sampling_row = SamplingRow(self.id, sampling, self.token_ids, self.num_prompt_tokens)

    @property
    def waits(self) -> bool:
        """Not running: it holds nothing."""
        return self.row < 0

    @property
    def num_settled_tokens(self) -> int:
        """Tokens whose keys and values were computed by steps that have ended."""
        return self.num_computed_tokens - self.num_in_flight

    @property
    def is_complete(self) -> bool:
        """It has all the tokens that it may come to; its last one, known or not, is never computed."""
        return len(self.token_ids) >= self.max_num_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Those that are known."""
        return len(self.token_ids) - self.num_pending - self.num_prompt_tokens
