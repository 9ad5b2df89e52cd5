"""Steps on a CPU with native kernels: a model's programs, and logits that the host samples from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from engines.core import SampledToken
from engines.models.native import NativeModel
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, host_result, row_indices
from engines.mpi.scheduler.step_plan import (
    WANT_LARGEST_ONLY,
    WANT_LOGITS,
    WANT_PROMPT_LOGPROBS,
    StepPlan,
)
from engines.native_kv_cache import NativeKvCache
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import StepInput

FEW_ROWS = 16
"""Number of rows up to which computing all logits of all rows costs no more than computing all logits of some rows and
bounds of the logits of the others."""


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """The rows of a step whose logits are wanted, numbered among the rows whose hidden states are wanted."""

    last_rows: list[int]
    """Row of the last token of each sequence whose logits are wanted, in the plan's order."""
    greedy_rows: dict[int, int]
    """The same for each sequence whose largest logit is enough, by index among all sequences that sample."""
    scored: list[range]
    """[num_scored]: rows of each sequence whose prompt log-probabilities are wanted, in the plan's order."""


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
        wanted: list[int] = []
        sampled, scored = [], []
        for count, end, want in zip(plan.query_lens, accumulate(plan.query_lens), plan.wants, strict=True):
            if want & WANT_PROMPT_LOGPROBS:
                scored.append(range(len(wanted), len(wanted) + count))
                wanted += range(end - count, end)
            elif want & WANT_LOGITS:
                wanted.append(end - 1)
            if want & WANT_LOGITS:
                sampled.append((len(wanted) - 1, want))
        # The kernels compute at least one row.
        self._step_input.select(row_indices(wanted or [0]))
        if len(sampled) > self._max_sampled:
            raise ValueError(
                f"a step samples for {len(sampled)} sequences; the maximum is {self._max_sampled}"
            )
        greedy_rows = {}
        if self._model.largest_logits is not None:
            greedy_rows = {i: row for i, (row, want) in enumerate(sampled) if want & WANT_LARGEST_ONLY}
        if len(greedy_rows) < len(sampled) <= FEW_ROWS:
            greedy_rows = {}
        last_rows = [row for i, (row, _) in enumerate(sampled) if i not in greedy_rows]
        return NativeBatch(last_rows, greedy_rows, scored)

    def compute(
        self, batch: NativeBatch, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """Run the model. The logits of a result are overwritten by the next step."""
        model = self._model
        model.forward(self._step_input, self._stopwatch)
        largest = None
        if batch.greedy_rows and model.largest_logits is not None:
            largest = model.largest_logits(row_indices(batch.greedy_rows.values()))
        greedy_tokens = {}
        if largest is not None:  # on rank 0
            greedy_tokens = dict(zip(batch.greedy_rows, _greedy_tokens(largest), strict=True))
        result = host_result(batch.last_rows, batch.scored, targets, model.logits, self._stopwatch.show_alive)
        return replace(result, greedy_tokens=greedy_tokens)


def _greedy_tokens(largest: torch.Tensor) -> list[SampledToken]:
    """Return each row's token with the largest logit. largest: see `VocabParallelHead.largest`."""
    if largest.shape[1] > 2:
        # Of equal logits the first rank's counts, which has the lower ids. NaN is above all numbers.
        ranks = 2 * largest[:, 0::2].argmax(dim=1, keepdim=True)
        largest = largest.gather(1, torch.cat((ranks, ranks + 1), dim=1))
    # One conversion for all rows: after a step, each call of torch takes many microseconds.
    return [SampledToken(int(token), None, math.isfinite(logit)) for logit, token in largest.tolist()]
