"""The state of a request, or of one of its beams, in the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import PromptLogprob, Request
from engines.mpi.scheduler.step_plan import UNKNOWN_TOKEN, WANT_LARGEST_ONLY, WANT_LOGITS, WANT_NOTHING
from engines.sampling.batch import SamplingRow


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request, and how many of them are computed.

    Owned by the scheduler; nothing else modifies it, except that the block manager sets `block_table`,
    `num_freed_blocks` and `num_computed_tokens`. The invariants in `check` hold after every step.
    """

    request: Request
    number: int = 0
    """Number in the order of arrival."""
    id: str = ""
    """Id of the request, or a beam's own id."""
    stop_token_ids: tuple[int, ...] = field(init=False)
    token_ids: list[int] = field(init=False)
    """Prompt tokens, then output tokens. The list object is never replaced."""
    num_prompt_tokens: int = field(init=False)
    max_num_tokens: int = field(init=False)
    """Maximum number of tokens: the prompt plus `max_new_tokens`."""
    is_beam: bool = field(init=False)
    """True for beams of a beam search. Beams advance in lockstep and share pages, so they reserve their blocks in
    every admission mode and are never preempted."""
    sampling_row: SamplingRow = field(init=False)
    """Input of the sampler, the same object in every step."""
    want: int = field(init=False)
    """`WANT_*` flags of a step that computes the newest token."""

    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the KV cache, or will be when the steps in flight have ended."""
    num_in_flight: int = 0
    """Computed tokens that belong to steps still in flight."""
    num_pending: int = 0
    """Trailing `UNKNOWN_TOKEN` entries of `token_ids`. The results of steps in flight replace them."""
    block_table: list[int] = field(default_factory=list)
    """One block for each page of tokens, in order."""
    num_freed_blocks: int = 0
    """Leading block-table entries whose blocks were freed because their tokens have left every window. The entries
    are not read: their blocks may belong to other sequences by now."""
    num_reported_blocks: int = 0
    """Block-table entries that the ranks already know."""
    row: int = -1
    """Row among the running sequences; -1 while the sequence waits."""
    done: bool = False
    """True once the last output was sent. Tokens from a step that was still in flight are dropped."""
    sibling: Sequence | None = None
    """Sequence with the same prompt. Once its prompt is computed, its pages are taken over."""
    companions: list[Sequence] = field(default_factory=list)
    """The other beams of a beam search, admitted and removed with this one (`beam_group.py`)."""

    num_cached_tokens: int = 0
    """Tokens that the prefix cache or a sibling provided at the first admission."""
    num_ever_computed: int = 0
    """Highest `num_computed_tokens` so far. Tokens below it are recomputed after a preemption."""
    num_preemptions: int = 0
    last_turn: int = 0
    """Number of the sequence's last turn, when running sequences take turns."""
    first_token_time: float | None = None
    last_plain_start: int = -1
    """Limit of the fast path: computing a position below it samples a token that is not the last one and has only
    its id to report."""
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)
    """Prompt log-probabilities computed so far, if the request wants them."""

    def __post_init__(self) -> None:
        # Copies of fields that every step reads.
        sampling = self.request.sampling
        self.id = self.id or self.request.id
        self.stop_token_ids = sampling.stop_token_ids
        self.token_ids = list(self.request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = self.num_prompt_tokens + sampling.max_new_tokens
        self.is_beam = sampling.num_beams > 1
        self.sampling_row = SamplingRow(self.id, sampling, self.token_ids, self.num_prompt_tokens)
        self.want = WANT_LOGITS | (WANT_LARGEST_ONLY if sampling.plain else WANT_NOTHING)

    @property
    def is_waiting(self) -> bool:
        """True while the sequence does not run and holds nothing."""
        return self.row < 0

    @property
    def num_settled_tokens(self) -> int:
        """Tokens whose keys and values were computed by steps that have ended."""
        return self.num_computed_tokens - self.num_in_flight

    @property
    def is_complete(self) -> bool:
        """True when no further token can be added. The last possible token, known or not, is never computed."""
        return len(self.token_ids) >= self.max_num_tokens

    @property
    def is_decoding(self) -> bool:
        """True when all tokens but the newest output token are computed."""
        num_tokens = len(self.token_ids)
        return self.num_computed_tokens == num_tokens - 1 and num_tokens > self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that are known."""
        return len(self.token_ids) - self.num_pending - self.num_prompt_tokens

    def check(self) -> None:
        """Check the invariants that hold between two steps, waiting or running.

        Raises:
            RuntimeError: the counters are inconsistent.
        """
        computed, known = self.num_computed_tokens, len(self.token_ids) - self.num_pending
        rules = {
            "it has more tokens than its maximum": len(self.token_ids) <= self.max_num_tokens,
            "its unknown tokens differ from its pending ones": (
                UNKNOWN_TOKEN not in self.token_ids[:known]
                and self.token_ids[known:] == [UNKNOWN_TOKEN] * self.num_pending
            ),
            "it is waiting but holds blocks or computed tokens": not self.is_waiting
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
            "it has more computed tokens than tokens": computed <= len(self.token_ids),
            "it has more tokens in flight than computed": 0 <= self.num_in_flight <= computed,
            "more blocks were reported to the ranks than it has": self.num_reported_blocks
            <= len(self.block_table),
            "it is a beam but has pending tokens": not (self.is_beam and self.num_pending),
        }
        broken = [what for what, holds in rules.items() if not holds]
        if broken:
            raise RuntimeError(f"sequence {self.id!r}: {'; '.join(broken)}")
