"""The step that takes the most memory. Plain Python: `lmi check` uses it to predict memory."""

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
"""Blocks of the cache that the step is computed on. Its block tables repeat these blocks, since the results are not
used."""
SCORED_TOKENS = 128
"""Prompt tokens scored at once. All logits of a long prompt over a large vocabulary would take gigabytes."""


@dataclass(frozen=True, slots=True)
class LargestStep:
    """Limits that no step exceeds."""

    num_tokens: int
    num_seqs: int
    max_model_len: int

    @property
    def num_decodes(self) -> int:
        """Maximum number of sequences that gain a token."""
        return min(self.num_seqs, self.num_tokens)

    @classmethod
    def of(cls, settings: SchedulerSettings, max_model_len: int) -> LargestStep:
        tokens = settings.max_num_batched_tokens
        if not settings.chunked_prefill:
            tokens = max(tokens, max_model_len)
        return cls(tokens, settings.max_num_seqs, max_model_len)

    def plans(self, block_size: int) -> list[StepPlan]:
        """Return plans of which one takes the most memory: one of long prompt chunks, one of sequences that all
        sample."""
        seqs = self.num_decodes
        chunks: list[int] = []
        left = self.num_tokens
        # A whole prompt needs no mask; a prompt with a token before it does.
        longest = max(1, self.max_model_len - 1)
        while left and len(chunks) < self.num_seqs:
            # One prompt that is scored, as long as one slice of scoring, then the rest.
            size = SCORED_TOKENS if not chunks and self.num_seqs > 1 else longest
            chunks.append(min(size, longest, left))
            left -= chunks[-1]
        wants = [WANT_PROMPT_LOGPROBS, *[WANT_NOTHING] * (len(chunks) - 1)]
        return [
            self._plan(chunks, wants, block_size),
            self._plan([1] * seqs, [WANT_LOGITS] * seqs, block_size),
        ]

    def _plan(self, query_lens: list[int], wants: list[int], block_size: int) -> StepPlan:
        """Build a plan of sequences of the maximum length that computes the last `query_lens[i]` tokens of each."""
        # Never two consecutive blocks: gathering blocks takes more memory than viewing them.
        table = [1 - i % NUM_BLOCKS for i in range(-(-self.max_model_len // block_size))]
        count = len(query_lens)
        return StepPlan.of_rows([self.max_model_len] * count, query_lens, wants, [table] * count)
