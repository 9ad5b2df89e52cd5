"""Steps on a CPU by native kernels: a model's programs, logits for the host to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engines.core import PromptLogprob
from engines.layers.rotary import RotaryTables
from engines.models.decoder import Decoder
from engines.models.native import record_forward, record_logits
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.prompt_logprobs import SLICE_ROWS, PromptTargets, score_prompts
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan
from engines.native_kv_cache import NativeKvCache
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import OpKind, Step, Team

_OPS_A_CALL = 16
"""Native operations between two signs of life: two layers of a large model's prompt may take seconds, and a call some
microseconds."""
_SEQUENCE = np.dtype(
    [("first_row", np.int64), ("query_len", np.int32), ("kv_len", np.int32), ("blocks", np.uint64)]
)
"""`Sequence` of native.h."""
_ATTENTION = (OpKind.ROPE_AND_STORE, OpKind.ATTENTION)


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """A step as native kernels take it, and the arrays that it points to."""

    step: Step
    arrays: tuple[object, ...]
    sample_rows: torch.Tensor
    """[num_sampled], int32: the row of each sampling sequence's last token, in the plan's order."""
    prompt_rows: torch.Tensor | None
    """[sum of prompt_lens], int64: the rows of all tokens whose next token's log-probability is wanted."""
    prompt_lens: tuple[int, ...]


class NativeSteps:
    """A `StepRunner`."""

    def __init__(
        self,
        model: Decoder,
        cache: NativeKvCache,
        tables: RotaryTables,
        team: Team,
        num_positions: int,
        max_tokens: int,
        max_sampled: int,
        leads: bool,
        stopwatch: Stopwatch,
        num_layers: int | None = None,
    ) -> None:
        """
        num_positions: of the tables.
        max_tokens: of a step; max_sampled: sequences of a step that sample.
        leads: this is rank 0.
        num_layers: compute only so many, to see what does not depend on how many there are.

        Raises:
            NotRecorded: the model does what no native operation does.
        """
        self._cache = cache
        self._num_positions = num_positions
        self._max_tokens = max_tokens
        self._max_sampled = max_sampled
        self._team = team
        self._leads = leads
        self._stopwatch = stopwatch
        self._tables = BlockTables()
        self._forward = record_forward(model, cache, tables, team, max_tokens, num_layers)
        hidden = self._forward.result
        self._logits = record_logits(model, hidden, team, max(max_sampled, min(SLICE_ROWS, max_tokens)))

    def update(self, plan: StepPlan) -> None:
        self._cache.scrub(plan.scrub_blocks)
        self._cache.copy_blocks(plan.copies)
        self._tables.apply(plan.table_updates)

    def prepare(self, plan: StepPlan) -> NativeBatch:
        """
        Raises:
            ValueError: the plan does not hold as many tokens as it says, or asks for more than there is room for.
        """
        rows = np.asarray(plan.rows, dtype=np.int64)
        starts = np.asarray(plan.starts, dtype=np.int32)
        query_lens = np.asarray(plan.query_lens, dtype=np.int32)
        wants = np.asarray(plan.wants, dtype=np.int32)
        ids = np.asarray(plan.token_ids, dtype=np.int32)
        ends = query_lens.cumsum(dtype=np.int32)
        if len(ids) != query_lens.sum():
            raise ValueError(f"the plan holds {len(ids)} tokens and says {query_lens.sum()}")
        firsts = ends - query_lens
        owners = np.repeat(np.arange(len(rows)), query_lens)
        positions = (starts - firsts)[owners] + np.arange(len(ids), dtype=np.int32)
        table, block_size = self._tables.entries, self._cache.block_size
        slots = table[rows[owners], positions // block_size] * block_size + positions % block_size
        sequences = np.empty(len(rows), dtype=_SEQUENCE)
        sequences["first_row"] = firsts
        sequences["query_len"] = query_lens
        sequences["kv_len"] = starts + query_lens
        sequences["blocks"] = table.ctypes.data + rows * table.strides[0]
        if len(ids) > self._max_tokens or plan.num_sampled > self._max_sampled:
            raise ValueError(f"a step of {len(ids)} tokens, {plan.num_sampled} of them sampled, is too large")
        if positions.max() >= self._num_positions or table.max() >= self._cache.num_blocks or ids.min() < 0:
            raise ValueError("a step names a token, a position or a block that does not exist")
        step = Step(
            num_rows=len(ids),
            ids=ids.ctypes.data,
            positions=positions.ctypes.data,
            slots=slots.ctypes.data,
            sequences=sequences.ctypes.data,
            num_sequences=len(rows),
        )
        scored = np.flatnonzero(wants & WANT_PROMPT_LOGPROBS)
        prompt_rows = None
        if len(scored):
            prompt_rows = torch.from_numpy(np.flatnonzero((wants & WANT_PROMPT_LOGPROBS)[owners]))
        return NativeBatch(
            step,
            (ids, positions, slots, sequences, table),
            torch.from_numpy((ends - 1)[(wants & WANT_LOGITS) != 0]),
            prompt_rows,
            tuple(query_lens[scored].tolist()),
        )

    def compute(
        self, batch: NativeBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """The logits of a result are overwritten by the next step's."""
        before = self._attention_seconds()
        self._forward.run(batch.step, self._stopwatch.show_alive, _OPS_A_CALL)
        scores: list[list[PromptLogprob]] = []
        if batch.prompt_rows is not None:
            mine = targets if self._leads else None
            scores = score_prompts(batch.prompt_rows, batch.prompt_lens, mine, self._head)
        logits = self._head(batch.sample_rows) if len(batch.sample_rows) else None
        self._stopwatch.add("attention", self._attention_seconds() - before)
        return StepResult(logits, scores)

    def _head(self, places: torch.Tensor) -> torch.Tensor | None:
        """places: rows of the step -> their logits on rank 0, None on the others."""
        numbers = places.to(torch.int32)
        logits: torch.Tensor | None = self._logits.run(Step(num_rows=len(numbers), places=numbers.data_ptr()))
        return logits

    def _attention_seconds(self) -> float:
        seconds = self._team.seconds()
        return sum(seconds[kind] for kind in _ATTENTION)
