"""Steps on a CPU with native kernels: a model's programs, and logits that the host samples from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.models.native import NativeInput, NativeModel
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.layout import StepLayout, lay_out
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, host_result
from engines.mpi.scheduler.step_plan import StepPlan
from engines.native_kv_cache import NativeKvCache
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import Step

_SEQUENCE = np.dtype(
    [("first_row", np.int64), ("query_len", np.int32), ("kv_len", np.int32), ("blocks", np.uint64)]
)
"""`Sequence` of native.h."""


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """Input of a step for native kernels."""

    layout: StepLayout
    inputs: NativeInput


class NativeSteps:
    """`StepRunner` for CPUs with native kernels."""

    def __init__(
        self,
        model: NativeModel,
        cache: NativeKvCache,
        num_positions: int,
        max_tokens: int,
        max_sampled: int,
        leads: bool,
        stopwatch: Stopwatch,
    ) -> None:
        """num_positions: positions of the model.
        max_tokens: maximum tokens of a step; max_sampled: maximum sequences of a step that sample.
        leads: True on rank 0.
        """
        self._model = model
        self._cache = cache
        self._num_positions = num_positions
        self._max_tokens = max_tokens
        self._max_sampled = max_sampled
        self._leads = leads
        self._stopwatch = stopwatch
        self._tables = BlockTables()

    def update(self, plan: StepPlan) -> None:
        # Native attention does not read beyond a sequence's keys, so blocks need not be zeroed.
        self._cache.copy_blocks(plan.copies)
        self._tables.apply(plan.table_updates)

    def prepare(self, plan: StepPlan) -> NativeBatch:
        """Lay out a step for native kernels.

        Raises:
            ValueError: the number of tokens in the plan is inconsistent, or the step is too large.
        """
        layout = lay_out(plan)
        ids, positions, table = layout.token_ids, layout.positions, self._tables.entries
        slots = layout.slots(table, self._cache.block_size)
        sequences = np.empty(layout.num_seqs, dtype=_SEQUENCE)
        sequences["first_row"] = layout.cu_seqlens_q[:-1]
        sequences["query_len"] = layout.query_lens
        sequences["kv_len"] = layout.starts + layout.query_lens
        sequences["blocks"] = table.ctypes.data + layout.rows.astype(np.int64) * table.strides[0]
        if len(ids) > self._max_tokens or len(layout.sampled) > self._max_sampled:
            raise ValueError(f"a step of {len(ids)} tokens, {len(layout.sampled)} sampled, is too large")
        if positions.max() >= self._num_positions or table.max() >= self._cache.num_blocks or ids.min() < 0:
            raise ValueError("a step names a token, a position or a block that does not exist")
        step = Step(
            num_rows=len(ids),
            ids=ids.ctypes.data,
            positions=positions.ctypes.data,
            slots=slots.ctypes.data,
            sequences=sequences.ctypes.data,
            num_sequences=len(sequences),
        )
        return NativeBatch(layout, NativeInput(step, ids, positions, slots, (sequences, table)))

    def compute(
        self, batch: NativeBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """Run the model. The logits of a result are overwritten by the next step."""
        self._model.forward(batch.inputs, self._stopwatch)
        return host_result(batch.layout, targets if self._leads else None, self._model.logits)
