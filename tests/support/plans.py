"""Loaded models, and hand-built step plans for them: {row: tokens} becomes a plan with the block-table entries that
ranks do not have yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SamplingParams, SchedulerSettings
from engines.mpi.runner.loading import LoadedModel, load_model
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import WANT_LOGITS, PlanKind, StepPlan
from engines.parallel import Communicator
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch

BLOCK_SIZE = 4
_SAMPLED_BY_HOST = SamplingParams(max_new_tokens=1, top_logprobs=1)


def load(
    model: ModelSettings,
    cache: CacheConfig,
    max_step_tokens: int,
    *,
    max_num_seqs: int = 8,
    parallel: ParallelConfig | None = None,
    comm: Communicator | None = None,
    stopwatch: Stopwatch | None = None,
) -> LoadedModel:
    """Load the model of one rank. Defaults: a single rank on a CPU with one thread."""
    parallel = parallel or ParallelConfig()
    limits = SchedulerSettings(max_num_seqs, max_step_tokens, max_step_tokens, max_waiting=8)
    config = MpiEngineConfig(model=model, parallel=parallel, cache=cache, scheduler=SchedulerConfig(limits))
    device = torch.device(parallel.device)
    return load_model(config, comm or Communicator(), device, stopwatch or Stopwatch(lambda: 0.0))


class PlanMaker:
    """Tracks for each row its block table, the entries sent to the ranks, and the number of computed tokens."""

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.computed: dict[int, int] = {}
        self._tables: dict[int, list[int]] = {}
        self._sent: dict[int, int] = {}

    def begin(self, row: int, table: Sequence[int], computed: int = 0) -> None:
        """Assign the row to a new sequence. Its first `computed` tokens are in the cache already."""
        self._tables[row] = list(table)
        self._sent[row] = 0
        self.computed[row] = computed

    def plan(
        self,
        chunks: Mapping[int, Sequence[int]],
        wants: Mapping[int, int] | None = None,
        *,
        copies: Sequence[int] = (),
    ) -> StepPlan:
        """Plan the next tokens of some rows, in this order. wants: by row; defaults to `WANT_LOGITS`."""
        starts, updates = [], []
        for row, tokens in chunks.items():
            starts.append(self.computed[row])
            self.computed[row] += len(tokens)
            sent, needed = self._sent[row], -(-self.computed[row] // self.block_size)
            if needed > sent:
                updates += [row, sent, needed - sent, *self._tables[row][sent:needed]]
                self._sent[row] = needed
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
    """Run a complete step on one rank. Returns logits even if the device could choose tokens itself."""
    runner.steps.update(plan)
    rows = [SamplingRow(f"row {row}", _SAMPLED_BY_HOST, [0], 1) for row in range(plan.num_sampled)]
    result = runner.steps.compute(runner.steps.prepare(plan), targets, rows)
    # The next step overwrites them.
    return result if result.logits is None else replace(result, logits=result.logits.clone())


def plans_in_chunks(
    prompts: Sequence[Sequence[int]],
    tables: Sequence[Sequence[int]],
    chunks: Sequence[Sequence[int]],
) -> list[tuple[StepPlan, list[tuple[int, int]]]]:
    """Plan steps that feed all prompts at once: prompt i in chunks of sizes `chunks[i]`, then token by token.

    Each plan comes with the (prompt, position) of its logits, which are those of the last token of each chunk.
    """
    maker = PlanMaker()
    for row, table in enumerate(tables[: len(prompts)]):
        maker.begin(row, table)
    plans = []
    for step in range(max(map(len, prompts))):
        step_chunks: dict[int, Sequence[int]] = {}
        for row, prompt in enumerate(prompts):
            num_computed = maker.computed[row]
            if num_computed < len(prompt):
                size = chunks[row][step] if step < len(chunks[row]) else 1
                step_chunks[row] = prompt[num_computed : num_computed + size]
        if step_chunks:
            plan = maker.plan(step_chunks)
            plans.append((plan, [(row, maker.computed[row] - 1) for row in step_chunks]))
    return plans


def run_plans(
    runner: LoadedModel, plans: Sequence[tuple[StepPlan, list[tuple[int, int]]]]
) -> dict[tuple[int, int], torch.Tensor]:
    """Return logits [vocab_size] by (prompt, position). Ranks other than 0 return none."""
    found: dict[tuple[int, int], torch.Tensor] = {}
    for plan, places in plans:
        logits = run_plan(runner, plan).logits
        if logits is not None:
            found.update(zip(places, logits, strict=True))
    return found
