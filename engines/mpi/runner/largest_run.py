"""One run of the largest step, to measure its memory."""

from __future__ import annotations

import torch

from engines.core import SamplingParams
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepRunner
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler


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
"""Sampling parameters with everything on that copies the logits, and without `top_k`, which would reduce the work of
the others."""
