"""Steps on a CPU without native kernels: grouped attention by torch, logits for the host to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from engines.kv_cache import KvCache
from engines.layers.rotary import RotaryTables, cosines_and_sines
from engines.layers.step_attention import GroupedStepAttention
from engines.models.decoder import Decoder
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.layout import StepLayout, lay_out
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, host_result
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow
from lmi_kernels import batch_invariant_rows
from lmi_kernels.attention_plan import AttentionGroup, GroupLimits, decode_order, plan_chunk, plan_decodes


@dataclass(frozen=True, slots=True)
class CpuBatch:
    """One step's input, flattened: single tokens first, in the order attention likes, then chunks."""

    layout: StepLayout
    input_ids: torch.Tensor
    """[num_rows], int64; rows beyond the tokens are padding."""
    attention: GroupedStepAttention


class CpuSteps:
    """A `StepRunner`.

    Attention by torch multiplies keys behind a sequence's end by 0, and 0 * NaN is NaN. So what a step computes that is
    not finite does not stay in the cache: its slots are zeroed, and its sequence's logits are NaN from then on.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KvCache,
        tables: RotaryTables,
        limits: GroupLimits,
        contiguous: bool,
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
        self._limits = limits
        self._contiguous = contiguous
        self._leads = leads
        self._num_layers = num_layers
        self._tables = BlockTables()
        self._sick_rows: set[int] = set()
        """Rows of the tables whose sequences have computed something that is not finite."""

    @torch.inference_mode()
    def update(self, plan: StepPlan) -> None:
        self._cache.copy_blocks(plan.copies)
        self._sick_rows.difference_update(self._tables.apply(plan.table_updates).tolist())

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> CpuBatch:
        """Raises ValueError: the plan does not hold as many tokens as it says."""
        order, groups = self._group(plan)
        layout = lay_out(plan, order)
        num_tokens = len(layout.owners)
        padding = np.zeros(self._padded(num_tokens) - num_tokens, dtype=np.int64)
        positions = torch.from_numpy(np.concatenate((layout.positions, padding)))
        slots = layout.slots(self._tables.entries, self._limits.block_size).astype(np.int64)
        rotary = {kind: cosines_and_sines(table, positions) for kind, table in self._rotary_tables.items()}
        attention = GroupedStepAttention(
            num_tokens, torch.from_numpy(slots), rotary, groups, self._cache.workspace
        )
        return CpuBatch(layout, torch.from_numpy(np.concatenate((layout.token_ids, padding))), attention)

    @torch.inference_mode()
    def compute(
        self, batch: CpuBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        layout, slots = batch.layout, batch.attention.slot_mapping
        try:
            hidden = self._model.forward(batch.input_ids, self._cache, batch.attention, self._num_layers)
        except Exception:
            self._cache.zero(slots)
            raise
        sick = ~hidden[: len(slots)].isfinite().all(dim=1)
        if sick.any():
            self._cache.zero(slots[sick])
            self._sick_rows.update(layout.rows[layout.owners[sick.numpy()]].tolist())
        result = host_result(layout, targets if self._leads else None, partial(self._head, hidden))
        if self._sick_rows and result.logits is not None:
            of_sick = np.isin(layout.rows[layout.sampled], list(self._sick_rows))
            result.logits[torch.from_numpy(of_sick)] = torch.nan
        return result

    def _group(self, plan: StepPlan) -> tuple[list[int], tuple[AttentionGroup, ...]]:
        """The order of the plan's sequences in the batch, and how they are grouped for attention."""
        limits, contiguous = self._limits, self._contiguous
        lens = [start + count for start, count in zip(plan.starts, plan.query_lens, strict=True)]
        # Only what counts is read: what stands behind it in a row is somebody else's.
        tables = [
            self._tables.entries[row, : -(-length // limits.block_size)].tolist()
            for row, length in zip(plan.rows, lens, strict=True)
        ]
        singles = [i for i, count in enumerate(plan.query_lens) if count == 1]
        singles = [
            singles[i]
            for i in decode_order([lens[i] for i in singles], [tables[i] for i in singles], contiguous)
        ]
        groups = plan_decodes([lens[i] for i in singles], [tables[i] for i in singles], limits, contiguous)
        chunks = [i for i, count in enumerate(plan.query_lens) if count > 1]
        at = len(singles)
        for i in chunks:
            groups.append(plan_chunk(at, plan.query_lens[i], lens[i], tables[i], limits))
            at += plan.query_lens[i]
        return [*singles, *chunks], tuple(groups)

    def _padded(self, num_rows: int) -> int:
        """So many that a row's bits do not depend on how many they are."""
        return batch_invariant_rows(num_rows, dense=self._limits.batch_invariant)

    def _head(self, hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor | None:
        """Logits of some rows."""
        count = len(places)
        padding = places[:1].expand(self._padded(count) - count)
        logits = self._model.logits(hidden[torch.cat((places, padding))])
        return None if logits is None else logits[:count]
