"""Logits of the engine's own model runner, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import SamplingParams
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow
from tests.gpu.engine import Engine
from tests.support.plans import PlanMaker

_BY_THE_HOST = SamplingParams(max_new_tokens=1, top_logprobs=1)
"""What no device chooses, so that logits come back."""


def last_logits(engine: Engine, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """[num_prompts, vocab_size], behind each prompt: all but its last token as one chunk, then that one in a step with
    those of all others, which is a decode."""
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
    """One step, whose tokens the host would choose."""
    runner = engine.runner
    runner.steps.update(plan)
    rows = [SamplingRow(f"row {i}", _BY_THE_HOST, [0], 1) for i in range(plan.num_sampled)]
    return runner.steps.compute(runner.steps.prepare(plan), rows=rows)
