"""The step that takes the most memory: what it is, and a pass that shows what it takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engines.core import SamplingParams, SchedulerSettings
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepRunner
from engines.mpi.scheduler.step_plan import (
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_PROMPT_LOGPROBS,
    StepPlan,
)
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler

NUM_BLOCKS = 2
"""Of the cache that the pass runs on: its tables name these again and again, for nobody reads what is computed."""
_SCORED_TOKENS = 128


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
            size = _SCORED_TOKENS if not chunks and self.num_seqs > 1 else longest
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


def run_largest(
    step: LargestStep, steps: StepRunner, block_size: int, vocab_size: int, device: torch.device
) -> None:
    """Compute and sample the largest step, on a cache of `NUM_BLOCKS` blocks."""
    for plan in step.plans(block_size):
        steps.update(plan)
        batch = steps.prepare(plan)
        targets = [PromptTargets((0,) * count, num_top=1) for count in plan.scored_lens]
        rows = [SamplingRow(f"profile {i}", _PARAMS, [0, 0], 1) for i in range(plan.num_sampled)]
        logits = steps.compute(batch, targets, rows).logits
        if logits is not None:
            Sampler(vocab_size, device).sample(logits, rows)


_PARAMS = SamplingParams(
    max_new_tokens=8,
    temperature=0.7,
    top_p=0.9,
    min_p=0.01,
    typical_p=0.95,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    min_new_tokens=4,
    stop_token_ids=(0,),
    logprobs=True,
    top_logprobs=1,
)
"""With everything on that holds a copy of the logits, and `top_k` off, which would make the others' work small."""
