"""Compute logits with the engine's own model runner, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.gpu.engine import Engine
from tests.support.plans import PlanMaker, run_plan


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
            run_plan(engine.runner, maker.plan({row: chunk}, {row: 0}))
            start += len(chunk)
    plan = maker.plan({row: [prompt[-1]] for row, prompt in enumerate(prompts)})
    logits = run_plan(engine.runner, plan).logits
    assert logits is not None
    return logits.float()
