"""The step that takes the most memory. Plain Python: `lmi check` predicts what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core import SchedulerSettings
from engines.mpi.scheduler.step_plan import (
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_PROMPT_LOGPROBS,
    StepPlan,
)

NUM_BLOCKS = 2
"""Of the cache that it is computed on: its tables name these again and again, for nobody reads what is computed."""
SCORED_TOKENS = 128
"""Of a prompt, scored at once."""


@dataclass(frozen=True, slots=True)
class LargestStep:
    """What no step exceeds."""

    num_tokens: int
    num_seqs: int
    max_model_len: int

    @property
    def num_decodes(self) -> int:
        """Sequences that gain a token, at most."""
        return min(self.num_seqs, self.num_tokens)

    @classmethod
    def of(cls, settings: SchedulerSettings, max_model_len: int) -> LargestStep:
        tokens = settings.max_num_batched_tokens
        if not settings.chunked_prefill:
            tokens = max(tokens, max_model_len)
        return cls(tokens, settings.max_num_seqs, max_model_len)

    def plans(self, block_size: int) -> list[StepPlan]:
        """Steps of which one is the largest: prompts' ends, all scored, and sequences that all sample."""
        seqs = self.num_decodes
        chunks: list[int] = []
        left = self.num_tokens
        # A whole prompt needs no mask, one that has a token behind it does.
        longest = max(1, self.max_model_len - 1)
        while left and len(chunks) < self.num_seqs:
            # One that is scored, as long as scoring looks at at once; then the rest.
            size = SCORED_TOKENS if not chunks and self.num_seqs > 1 else longest
            chunks.append(min(size, longest, left))
            left -= chunks[-1]
        wants = [WANT_PROMPT_LOGPROBS, *[WANT_NOTHING] * (len(chunks) - 1)]
        return [
            self._plan(chunks, wants, block_size),
            self._plan([1] * seqs, [WANT_LOGITS] * seqs, block_size),
        ]

    def _plan(self, query_lens: list[int], wants: list[int], block_size: int) -> StepPlan:
        """Sequences of the greatest length, of which the last `query_lens[i]` tokens are computed."""
        # Never two consecutive blocks: what is gathered takes more than what is viewed.
        table = [1 - i % NUM_BLOCKS for i in range(-(-self.max_model_len // block_size))]
        count = len(query_lens)
        return StepPlan.of_rows([self.max_model_len] * count, query_lens, wants, [table] * count)
