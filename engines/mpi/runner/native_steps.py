"""Steps on a CPU with native kernels: a model's programs, and logits that the host samples from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from engines.models.native import NativeModel
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, host_result
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan
from engines.native_kv_cache import NativeKvCache
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import StepInput


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """The rows of a step whose logits are wanted."""

    last_rows: list[int]
    """[num_sampled]: token row of each sampling sequence's last token, in the plan's order."""
    scored: list[range]
    """[num_scored]: token rows of each sequence whose prompt log-probabilities are wanted, in the plan's order."""


class NativeSteps:
    """`StepRunner` for CPUs with native kernels."""

    def __init__(
        self,
        model: NativeModel,
        cache: NativeKvCache,
        step_input: StepInput,
        max_sampled: int,
        stopwatch: Stopwatch,
    ) -> None:
        """max_sampled: maximum sequences of a step that sample."""
        self._model = model
        self._cache = cache
        self._step_input = step_input
        self._max_sampled = max_sampled
        self._stopwatch = stopwatch
        self._tables = BlockTables()

    def update(self, plan: StepPlan) -> None:
        # Native attention does not read beyond a sequence's keys, so blocks need not be zeroed.
        self._cache.copy_blocks(plan.copies)
        self._tables.apply(plan.table_updates)

    def prepare(self, plan: StepPlan) -> NativeBatch:
        """Lay out a step for native kernels. The next step overwrites it.

        Raises:
            ValueError: the plan is inconsistent, or the step is too large.
        """
        tables = torch.from_numpy(self._tables.entries)
        self._step_input.lay_out(tables, plan.rows, plan.starts, plan.query_lens, plan.token_ids)
        ends = accumulate(plan.query_lens)
        chunks = [range(end - count, end) for count, end in zip(plan.query_lens, ends, strict=True)]
        wanted = list(zip(chunks, plan.wants, strict=True))
        last_rows = [chunk[-1] for chunk, want in wanted if want & WANT_LOGITS]
        if len(last_rows) > self._max_sampled:
            raise ValueError(
                f"a step samples for {len(last_rows)} sequences; the maximum is {self._max_sampled}"
            )
        return NativeBatch(last_rows, [chunk for chunk, want in wanted if want & WANT_PROMPT_LOGPROBS])

    def compute(
        self, batch: NativeBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """Run the model. The logits of a result are overwritten by the next step."""
        self._model.forward(self._step_input, self._stopwatch)
        return host_result(
            batch.last_rows, batch.scored, targets, self._model.logits, self._stopwatch.show_alive
        )
