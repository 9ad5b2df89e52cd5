"""A request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import PromptLogprob, Request
from engines.mpi.scheduler.step_plan import UNKNOWN_TOKEN
from engines.sampling.batch import SamplingRow


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens, and how far they are computed. Changed by the scheduler; the allocator changes
    `block_table` and `num_computed_tokens`. `check` holds after every step.
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
    max_num_tokens: int = field(init=False)
    """What the sequence may come to at worst."""
    is_beam: bool = field(init=False)
    """Beams go on in lockstep and share pages, so they reserve what they need in every mode and are never preempted."""
    sampling_row: SamplingRow = field(init=False)
    """The same in every step."""

    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache, or will be when the steps in flight have ended."""
    num_in_flight: int = 0
    """Of the computed tokens, those of steps in flight."""
    num_pending: int = 0
    """Tokens at the end of `token_ids` that steps in flight will give: `UNKNOWN_TOKEN` each."""
    block_table: list[int] = field(default_factory=list)
    """One block for each page of its tokens, in order."""
    num_freed_blocks: int = 0
    """Leading entries of the block table whose blocks were given back: their tokens have left every window. What these
    entries name is another's by now, and is not read."""
    num_reported_blocks: int = 0
    """Entries of the block table that the ranks know."""
    row: int = -1
    """Its place among the running sequences; -1 while it waits."""
    done: bool = False
    """It has had its last output: what a late step still gives is nobody's."""
    sibling: Sequence | None = None
    """A sequence with the same prompt. Once that is computed, its pages are taken over."""
    companions: list[Sequence] = field(default_factory=list)
    """The other beams of a beam search, admitted and removed with this one (`beam_group.py`)."""

    num_cached_tokens: int = 0
    """Tokens that the prefix cache or a sibling gave when it was first admitted."""
    num_ever_computed: int = 0
    """`num_computed_tokens` at most so far: what lies below is computed again after a preemption."""
    num_preemptions: int = 0
    last_turn: int = 0
    """Number of its last turn, where the running sequences take turns."""
    first_token_time: float | None = None
    last_plain_start: int = -1
    """A token computed before this place gives one that is not the last, with nothing to report but itself."""
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)
    """Those computed so far, where the request wants them."""

    def __post_init__(self) -> None:
        # Copies of what every step looks at.
        sampling = self.request.sampling
        self.id = self.id or self.request.id
        self.stop_token_ids = sampling.stop_token_ids
        self.token_ids = list(self.request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = self.num_prompt_tokens + sampling.max_new_tokens
        self.is_beam = sampling.num_beams > 1
        self.sampling_row = SamplingRow(self.id, sampling, self.token_ids, self.num_prompt_tokens)

    @property
    def waits(self) -> bool:
        """It does not run, and holds nothing."""
        return self.row < 0

    @property
    def num_settled_tokens(self) -> int:
        """Tokens whose keys and values were computed by steps that have ended."""
        return self.num_computed_tokens - self.num_in_flight

    @property
    def is_complete(self) -> bool:
        """It has all the tokens that it may come to. The last one, known or not, is never computed."""
        return len(self.token_ids) >= self.max_num_tokens

    @property
    def is_decoding(self) -> bool:
        """All but its newest output token is computed."""
        num_tokens = len(self.token_ids)
        return self.num_computed_tokens == num_tokens - 1 and num_tokens > self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Those that are known."""
        return len(self.token_ids) - self.num_pending - self.num_prompt_tokens

    def check(self) -> None:
        """Check what holds between two steps, waiting or running.

        Raises:
            RuntimeError: the counters do not fit together.
        """
        computed, known = self.num_computed_tokens, len(self.token_ids) - self.num_pending
        rules = {
            "it has more tokens than it may come to": len(self.token_ids) <= self.max_num_tokens,
            "unknown tokens are not those that are pending": (
                UNKNOWN_TOKEN not in self.token_ids[:known]
                and self.token_ids[known:] == [UNKNOWN_TOKEN] * self.num_pending
            ),
            "it waits and holds something": not self.waits
            or not any(
                (
                    self.block_table,
                    computed,
                    self.num_in_flight,
                    self.num_reported_blocks,
                    self.num_freed_blocks,
                )
            ),
            "it has computed its newest token": computed < max(1, len(self.token_ids)) or self.is_beam,
            "more is computed than there are tokens": computed <= len(self.token_ids),
            "more is in flight than computed": 0 <= self.num_in_flight <= computed,
            "ranks know more blocks than it has": self.num_reported_blocks <= len(self.block_table),
            "a beam runs ahead": not (self.is_beam and self.num_pending),
        }
        broken = [what for what, holds in rules.items() if not holds]
        if broken:
            raise RuntimeError(f"sequence {self.id!r}: {'; '.join(broken)}")
