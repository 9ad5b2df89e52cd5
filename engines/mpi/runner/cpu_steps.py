"""Steps on a CPU without native kernels: by torch, logits for the host to choose from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import PromptLogprob
from engines.kv_cache import KvCache
from engines.layers.rotary import RotaryTables
from engines.models.decoder import Decoder
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.batch import Batch, make_batch
from engines.mpi.runner.prompt_logprobs import PromptTargets, score_prompts
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow


class CpuSteps:
    """A `StepRunner`."""

    def __init__(
        self,
        model: Decoder,
        cache: KvCache,
        tables: RotaryTables,
        leads: bool,
        num_layers: int | None = None,
    ) -> None:
        """
        leads: this is rank 0.
        num_layers: compute only so many, to see what does not depend on how many there are.
        """
        self._model = model
        self._cache = cache
        self._rotary_tables = tables
        self._leads = leads
        self._num_layers = num_layers
        self._tables = BlockTables()

    @torch.inference_mode()
    def update(self, plan: StepPlan) -> None:
        self._cache.scrub(plan.scrub_blocks)
        self._cache.copy_blocks(plan.copies)
        self._tables.apply(plan.table_updates)

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> Batch:
        return make_batch(plan, self._tables, self._rotary_tables, self._cache.block_size)

    @torch.inference_mode()
    def compute(
        self, batch: Batch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        hidden = self._model.forward(batch.input_ids, self._cache, batch.attention, self._num_layers)
        scores: list[list[PromptLogprob]] = []
        if batch.prompt_rows is not None:
            mine = targets if self._leads else None
            scores = score_prompts(
                batch.prompt_rows, batch.prompt_lens, mine, lambda rows: self._model.logits(hidden[rows])
            )
        if len(batch.sample_rows) == 0:
            return StepResult(None, scores)
        return StepResult(self._model.logits(hidden[batch.sample_rows]), scores)
