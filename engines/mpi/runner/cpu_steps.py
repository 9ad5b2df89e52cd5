"""Steps on a CPU without native kernels: torch computes logits that the host samples from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engines.kv_cache import KvCache
from engines.layers.rotary import RotaryTables, cosines_and_sines
from engines.layers.step_attention import TorchStepAttention
from engines.models.decoder import Model
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.layout import StepLayout, lay_out
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, host_result
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from lmi_kernels import SequenceRows


@dataclass(frozen=True, slots=True)
class CpuBatch:
    """Input of one step, flattened."""

    layout: StepLayout
    input_ids: torch.Tensor
    """[num_tokens], int64."""
    attention: TorchStepAttention


class CpuSteps:
    """`StepRunner` for CPUs without native kernels."""

    def __init__(self, model: Model, cache: KvCache, tables: RotaryTables, stopwatch: Stopwatch) -> None:
        self._model = model
        self._cache = cache
        self._rotary_tables = tables
        self._stopwatch = stopwatch
        self._tables = BlockTables()

    @torch.inference_mode()
    def update(self, plan: StepPlan) -> None:
        self._cache.copy_blocks(plan.copies)
        self._tables.apply(plan.table_updates)

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> CpuBatch:
        """Lay out a step as tensors. Raises ValueError when the number of tokens in the plan is inconsistent."""
        layout = lay_out(plan)
        positions = torch.from_numpy(layout.positions.astype(np.int64))
        attention = TorchStepAttention(
            positions,
            torch.from_numpy(layout.slots(self._tables.entries, self._cache.block_size).astype(np.int64)),
            {rotary: cosines_and_sines(table, positions) for rotary, table in self._rotary_tables.items()},
            tuple(
                SequenceRows(first, count, start + count, self._blocks(row, start + count))
                for first, count, start, row in zip(
                    layout.cu_seqlens_q[:-1].tolist(),
                    layout.query_lens.tolist(),
                    layout.starts.tolist(),
                    layout.rows.tolist(),
                    strict=True,
                )
            ),
            torch.from_numpy(layout.wanted_rows.astype(np.int64)),
        )
        return CpuBatch(layout, torch.from_numpy(layout.token_ids.astype(np.int64)), attention)

    @torch.inference_mode()
    def compute(
        self, batch: CpuBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        hidden = self._model.forward(batch.input_ids, self._cache, batch.attention)
        layout = batch.layout
        return host_result(
            layout.last_rows.tolist(),
            layout.scored_ranges,
            targets,
            lambda places: self._model.logits(hidden[places]),
            self._stopwatch.show_alive,
        )

    def _blocks(self, row: int, num_keys: int) -> torch.Tensor:
        """Return the blocks of the sequence only: later entries of the row may belong to other sequences."""
        blocks = self._tables.entries[row, : -(-num_keys // self._cache.block_size)]
        return torch.from_numpy(blocks.astype(np.int64))
