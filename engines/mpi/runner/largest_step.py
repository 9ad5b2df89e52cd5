"""The step that takes the most memory: what it is, what it should take, and a pass that shows what it takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engines.core import SamplingParams, SchedulerSettings
from engines.models.config import ModelConfig
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepRunner
from engines.mpi.scheduler.step_plan import (
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_PROMPT_LOGPROBS,
    PlanKind,
    StepPlan,
)
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler

NUM_BLOCKS = 2
"""Of the cache that the pass runs on: its tables name these again and again, for nobody reads what is computed."""
_SCORED_TOKENS = 128
_BYTES_PER_LOGIT = 44
"""Sampling's copies of the logits: processed and sorted ones in fp32, probabilities and their sums in fp64, places."""


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

    def predict(self, config: ModelConfig, world_size: int, element: int, first_use: int) -> int:
        """Bytes of activations on one rank, from the model's shape.

        element: bytes of one number of them; first_use: what computing at all brings with it.
        """
        middle = config.intermediate_size / world_size
        if config.experts is not None:
            middle *= config.experts.top_k
        kv_heads = max(config.num_kv_heads, world_size)
        heads = (config.num_heads + 2 * kv_heads) * config.head_dim / world_size
        hidden = config.hidden_size
        layer = element * max(3 * hidden + 4 * middle, 3 * hidden + 3 * heads)
        if config.parallel_block is not None:
            # The MLP's result waits for attention's.
            layer += element * hidden
        rows = self.num_decodes
        logits = rows * config.vocab_size * (element + _BYTES_PER_LOGIT)
        hidden_rows = self.num_tokens * hidden * element
        masks = 5 * self.num_tokens * self.max_model_len
        turns = 8 * self.num_tokens * config.head_dim
        return int(max(self.num_tokens * layer + masks + turns, logits + hidden_rows)) + first_use

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
        num_blocks = -(-self.max_model_len // block_size)
        # Never two consecutive blocks: what is gathered takes more than what is viewed.
        table = [1 - i % NUM_BLOCKS for i in range(num_blocks)]
        updates: list[int] = []
        for row in range(len(query_lens)):
            updates += (row, 0, num_blocks, *table)
        return StepPlan(
            PlanKind.STEP,
            range(len(query_lens)),
            [self.max_model_len - length for length in query_lens],
            query_lens,
            wants,
            [0] * sum(query_lens),
            updates,
        )


def run_largest(
    step: LargestStep, steps: StepRunner, block_size: int, vocab_size: int, device: torch.device
) -> None:
    """Compute and sample the largest step, on a cache of `NUM_BLOCKS` blocks."""
    for plan in step.plans(block_size):
        steps.update(plan)
        batch = steps.prepare(plan)
        targets = [PromptTargets((0,) * count, num_top=1) for count in batch.prompt_lens]
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
