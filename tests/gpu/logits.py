"""Compute logits with the engine's own model runner, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import SamplingParams
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow
from tests.gpu.engine import Engine
from tests.support.plans import PlanMaker

_SAMPLED_BY_HOST = SamplingParams(max_new_tokens=1, top_logprobs=1)
"""Parameters that only the host can sample with, so that steps return logits."""


def last_logits(engine: Engine, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the logits after each prompt, [num_prompts, vocab_size]. All tokens of a prompt but the last are prefilled
    in chunks. The last tokens of all prompts are computed together in a decode step."""
    maker = PlanMaker(engine.limits.block_size)
    used = 0
    for row, prompt in enumerate(prompts):
        pages = -(-len(prompt) // engine.limits.block_size)
        maker.begin(row, range(used, used + pages))
        used += pages
        start, budget = 0, engine.limits.max_step_tokens
        while start < len(prompt) - 1:
            chunk = prompt[start : min(start + budget, len(prompt) - 1)]
            step(engine, maker.plan({row: chunk}, {row: 0}))
            start += len(chunk)
    result = step(engine, maker.plan({row: [prompt[-1]] for row, prompt in enumerate(prompts)}))
    assert result.logits is not None
    return result.logits.float()


def step(engine: Engine, plan: StepPlan):  # type: ignore[no-untyped-def]
    """Run one step with tokens that the host would sample."""
    runner = engine.runner
    runner.steps.update(plan)
    rows = [SamplingRow(f"row {i}", _SAMPLED_BY_HOST, [0], 1) for i in range(plan.num_sampled)]
    return runner.steps.compute(runner.steps.prepare(plan), rows=rows)
