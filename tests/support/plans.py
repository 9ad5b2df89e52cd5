"""Step plans built by hand: {row: tokens} in, a plan out that tells the ranks what they do not know yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engines.core import SamplingParams
from engines.mpi.runner.loading import LoadedModel
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import WANT_LOGITS, PlanKind, StepPlan
from engines.sampling.batch import SamplingRow

BLOCK_SIZE = 4
_BY_THE_HOST = SamplingParams(max_new_tokens=1, top_logprobs=1)


class PlanMaker:
    """Keeps, by row, the block table, how much of it the ranks know, and how many tokens are computed."""

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.computed: dict[int, int] = {}
        self._tables: dict[int, list[int]] = {}
        self._told: dict[int, int] = {}

    def begin(self, row: int, table: Sequence[int], computed: int = 0) -> None:
        """From now on the row is a new sequence's, whose first `computed` tokens stand in the cache already."""
        self._tables[row] = list(table)
        self._told[row] = 0
        self.computed[row] = computed

    def plan(
        self,
        chunks: Mapping[int, Sequence[int]],
        wants: Mapping[int, int] | None = None,
        *,
        copies: Sequence[int] = (),
    ) -> StepPlan:
        """The next tokens of some rows, in this order. wants: by row, `WANT_LOGITS` where it says nothing."""
        starts, updates = [], []
        for row, tokens in chunks.items():
            starts.append(self.computed[row])
            self.computed[row] += len(tokens)
            told, needed = self._told[row], -(-self.computed[row] // self.block_size)
            if needed > told:
                updates += [row, told, needed - told, *self._tables[row][told:needed]]
                self._told[row] = needed
        return StepPlan(
            PlanKind.STEP,
            list(chunks),
            starts,
            [len(tokens) for tokens in chunks.values()],
            [(wants or {}).get(row, WANT_LOGITS) for row in chunks],
            [token for tokens in chunks.values() for token in tokens],
            updates,
            copies,
        )


def run_plan(runner: LoadedModel, plan: StepPlan, targets: Sequence[PromptTargets] = ()) -> StepResult:
    """A whole step of one rank, which gives logits also where a device could choose tokens itself."""
    runner.steps.update(plan)
    rows = [SamplingRow(f"row {row}", _BY_THE_HOST, [0], 1) for row in range(plan.num_sampled)]
    return runner.steps.compute(runner.steps.prepare(plan), targets, rows)


def plans_in_chunks(
    prompts: Sequence[Sequence[int]],
    tables: Sequence[Sequence[int]],
    chunks: Sequence[Sequence[int]],
) -> list[tuple[StepPlan, list[tuple[int, int]]]]:
    """Steps that feed all prompts at once, prompt i in chunks of the sizes `chunks[i]`, the rest token by token.

    With each plan come (prompt, position) of the logits that it gives: those of each chunk's last token.
    """
    maker = PlanMaker()
    for row, table in enumerate(tables[: len(prompts)]):
        maker.begin(row, table)
    plans = []
    for step in range(max(map(len, prompts))):
        parts: dict[int, Sequence[int]] = {}
        for row, prompt in enumerate(prompts):
            done = maker.computed[row]
            if done < len(prompt):
                size = chunks[row][step] if step < len(chunks[row]) else 1
                parts[row] = prompt[done : done + size]
        if parts:
            plan = maker.plan(parts)
            plans.append((plan, [(row, maker.computed[row] - 1) for row in parts]))
    return plans


def run_plans(
    runner: LoadedModel, plans: Sequence[tuple[StepPlan, list[tuple[int, int]]]]
) -> dict[tuple[int, int], torch.Tensor]:
    """(prompt, position) -> [vocab_size]; on ranks other than 0 nothing."""
    found: dict[tuple[int, int], torch.Tensor] = {}
    for plan, places in plans:
        logits = run_plan(runner, plan).logits
        if logits is not None:
            found.update(zip(places, logits.clone(), strict=True))
    return found
