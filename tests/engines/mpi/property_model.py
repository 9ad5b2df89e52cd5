"""The GPU path on a CPU, over a model without weights, for random tests of the whole engine.

Everything is real from the step loop to the sampler on the device, except that references stand for the kernels that
need a GPU. The KV cache holds tokens and positions. The logits of a token are a pure function of what it sees in the
cache, so a wrong table, slot, copy or token changes all tokens after it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engines.kv_cache import KvCache
from engines.layers.paged_step_attention import PagedStepAttention
from engines.layers.step_attention import TorchStepAttention
from engines.mpi.cache.block_tables import table_triples
from engines.mpi.runner.cpu_steps import CpuSteps
from engines.mpi.runner.decode_graphs import DecodeGraphs, DecodeOutputs
from engines.mpi.runner.executor import StepFailed
from engines.mpi.runner.gpu_steps import GpuSteps
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, StepRunner
from engines.mpi.scheduler.step_plan import PlanKind, StepPlan
from engines.parallel import Communicator
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from tests.engines.mpi.scheduler.property_requests import VOCAB
from tests.kernels.references.step_inputs import step_inputs_reference

POISON = VOCAB
"""A prompt token whose steps fail. The model never generates it."""
CPU = torch.device("cpu")
_NON_FINITE = 500
"""One of this many histories has logits that are not finite."""


def logits_after(token_ids: Sequence[int], window: int | None) -> torch.Tensor:
    """Return the logits of the last token, [1, VOCAB], fp32. window: number of latest tokens that it sees."""
    first = 0 if window is None else max(0, len(token_ids) - window)
    cells = np.array([token_ids[first:], range(first, len(token_ids))], dtype=np.float32)
    return _logits(np.array([zlib.crc32(cells.tobytes())]))


def _logits(hashes: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
    """hashes: of what each row sees, [n] -> [n, VOCAB], fp32."""
    mixed = hashes.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed + np.arange(VOCAB, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)) ^ (
        mixed >> np.uint64(31)
    )
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    logits = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(6 / 2**24) - 3
    logits[hashes % _NON_FINITE == 1] = np.nan
    return torch.from_numpy(logits)


@dataclass(frozen=True, slots=True)
class Faults:
    """Failures of steps with several sequences. The engine then computes parts of the step again."""

    rate: float = 0.0
    rng: random.Random = field(default_factory=random.Random)

    def may_fail(self, num_sequences: int) -> None:
        if num_sequences > 1 and self.rng.random() < self.rate:
            raise StepFailed("at random")


class HashModel:
    """A `Model` whose keys are tokens and whose values are positions. Hidden states are hashes of what a row sees."""

    largest_logits = None

    def __init__(self, window: int | None, faults: Faults) -> None:
        self._window = window
        self._faults = faults

    def forward(self, input_ids: torch.Tensor, cache: KvCache, step: Any) -> torch.Tensor:
        if POISON in input_ids.tolist():
            raise StepFailed("poison")
        rows = list(_rows(step))
        self._faults.may_fail(sum(stop == end > 0 for _, stop, end in rows))
        pool = cache.layers[0].view(2, -1)
        real = step.slot_mapping >= 0
        pool[:, step.slot_mapping[real]] = torch.stack((input_ids, step.positions))[:, real].float()
        cells = pool.numpy()
        hashes = [self._hash(cells, blocks, stop, cache.block_size) for blocks, stop, _ in rows]
        hidden = torch.tensor(hashes, dtype=torch.float64)[:, None]
        return hidden if step.wanted_rows is None else hidden[step.wanted_rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return _logits(hidden[:, 0].long().numpy())

    def _hash(
        self, cells: npt.NDArray[np.float32], blocks: npt.NDArray[np.int32], stop: int, block_size: int
    ) -> int:
        positions = np.arange(0 if self._window is None else max(0, stop - self._window), stop)
        return zlib.crc32(
            cells[:, blocks[positions // block_size] * block_size + positions % block_size].tobytes()
        )


def _rows(step: Any) -> Iterator[tuple[npt.NDArray[np.int32], int, int]]:
    """Yield for each token row: the blocks of its sequence, the number of tokens up to it, and their number after the
    step. Padding has no tokens."""
    if isinstance(step, TorchStepAttention):
        sequences = [(s.blocks.numpy(), s.query_len, s.kv_len) for s in step.sequences]
    else:
        sequences = list(_paged_sequences(step))
    for blocks, count, end in sequences:
        for stop in range(end - count + 1, end + 1):
            yield blocks, stop, end


def _paged_sequences(step: PagedStepAttention) -> Iterator[tuple[npt.NDArray[np.int32], int, int]]:
    singles = step.decodes
    parts = [(singles, [1] * len(singles.seq_lens))]
    if step.prefills is not None and step.cu_seqlens_q is not None:
        parts.append((step.prefills, step.cu_seqlens_q.diff().tolist()))
    for part, counts in parts:
        tables = part.block_tables.numpy()
        for row, count, end in zip(part.table_rows.tolist(), counts, part.seq_lens.tolist(), strict=True):
            yield tables[row], count, end


class DeviceSteps(GpuSteps):
    """The GPU path with references for the kernels that need a GPU."""

    def __init__(self, model: HashModel, cache: KvCache, largest: LargestStep, graphs: Sequence[int]) -> None:
        """graphs: batch sizes that are captured."""
        config: Any = SimpleNamespace(head_dim=1, attention=(), vocab_size=VOCAB)
        super().__init__(model, cache, {}, config, 1, Communicator(), largest, Stopwatch(lambda: 0.0))
        self._graphs = DecodeGraphs(self._decode, CPU, _record)
        self.capture(graphs)

    @torch.inference_mode()
    def update(self, plan: StepPlan) -> None:
        self._cache.copy_blocks(plan.copies)
        rows, columns, blocks = torch.from_numpy(table_triples(plan.table_updates)).T
        self._block_tables[rows, columns] = blocks

    def _inputs(self, *numbers: torch.Tensor) -> Any:
        return step_inputs_reference(*numbers, self._last_tokens, self._block_tables, self._cache.block_size)


def _record(decode: Callable[[], DecodeOutputs]) -> tuple[Callable[[], None], DecodeOutputs]:
    """Record a graph: replays overwrite the outputs."""
    outputs = decode()

    def replay() -> None:
        again = decode()
        for each in fields(outputs):
            getattr(outputs, each.name).copy_(getattr(again, each.name))

    return replay, outputs


class Executor:
    """Runs plans as `StepExecutor` does on one rank. Some steps with several sequences fail before they are prepared,
    inside the model, or after their tokens were sampled."""

    def __init__(self, steps: StepRunner, faults: Faults) -> None:
        self.plans: list[StepPlan] = []
        """All steps so far."""
        self._steps = steps
        self._faults = faults

    def run_on_all_ranks(
        self, plan: StepPlan, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        if plan.kind is not PlanKind.STEP:
            return StepResult()
        self.plans.append(plan)
        received = StepPlan.decode(plan.encode())
        self._steps.update(received)
        self._faults.may_fail(len(plan.rows))
        result = self._steps.compute(self._steps.prepare(received), targets, rows)
        self._faults.may_fail(len(plan.rows))
        return result


def make_executor(
    num_blocks: int,
    block_size: int,
    window: int | None,
    largest: LargestStep,
    graphs: Sequence[int] | None = (),
    faults: Faults | None = None,
) -> Executor:
    """graphs: batch sizes that are captured; None: a CPU, where the host samples all tokens."""
    faults = faults or Faults()
    cache = KvCache(1, 1, num_blocks, block_size, 1, torch.float32, CPU)
    model = HashModel(window, faults)
    if graphs is None:
        return Executor(CpuSteps(model, cache, {}, Stopwatch(lambda: 0.0)), faults)
    return Executor(DeviceSteps(model, cache, largest, graphs), faults)
