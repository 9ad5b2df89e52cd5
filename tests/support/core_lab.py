"""The continuous-batching engine in this process, without sockets: one loaded model, any number of schedulers."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engines.config import CacheConfig, ModelSettings, ParallelConfig, SchedulerConfig
from engines.core import Request, RequestOutput, SamplingParams, SchedulerSettings
from engines.health import StatusBoard
from engines.models.loading import describe
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.loading import LoadedModel
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.trace import StepTrace
from engines.parallel import Communicator
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from tests.support.plans import load


@dataclass(frozen=True, slots=True)
class Mode:
    """Options of the engine, apart from the model."""

    policy: str = "max_utilization"
    paged: bool = True
    prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    chunked_prefill: bool = True
    max_num_seqs: int = 8
    max_prefill_tokens: int = 64
    max_num_batched_tokens: int = 64
    num_blocks: int | None = None
    """None: all blocks of the lab."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `SchedulerSettings`."""


@dataclass(slots=True)
class Running:
    """An engine, and the parts of it that tests inspect."""

    core: EngineCore
    scheduler: Scheduler
    blocks: BlockManager
    stopwatch: Stopwatch


class CoreLab:
    """A model, loaded once for paged and once for contiguous attention when first needed."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        *,
        block_size: int = 16,
        num_blocks: int = 512,
        max_model_len: int = 2048,
        max_step_tokens: int = 256,
        max_step_seqs: int = 64,
        threads: int = 1,
        impl: str = "lmi",
    ) -> None:
        """`folder`: holds the status board."""
        torch.set_num_threads(threads)
        self._board = StatusBoard.create(folder / "status", 1)
        self._num_blocks = num_blocks
        self._settings = ModelSettings(str(model), "model", "fp32", max_model_len, impl=impl)
        self._max_model_len = max_model_len
        self._block_size, self._threads = block_size, threads
        self._max_step_tokens, self._max_step_seqs = max_step_tokens, max_step_seqs
        self._stopwatch = Stopwatch(time.perf_counter)
        self._runners: dict[bool, LoadedModel] = {}

    def start(self, mode: Mode, trace: StepTrace | None = None) -> Running:
        """Start a new engine on the loaded model. Run one at a time: engines share the memory of the cache."""
        runner = self._runner(mode.paged)
        blocks = make_block_manager(
            mode.num_blocks or self._num_blocks,
            self._block_size,
            mode.paged,
            mode.prefix_caching,
            runner.window,
        )
        settings = SchedulerSettings(
            mode.max_num_seqs,
            mode.max_prefill_tokens,
            mode.max_num_batched_tokens,
            max_waiting=100_000,
            scheduling_policy=mode.scheduling_policy,
            chunked_prefill=mode.chunked_prefill,
            **mode.more,
        )
        vocab_size = runner.config.vocab_size
        scheduler = Scheduler(SchedulerConfig(settings, mode.policy), blocks, self._max_model_len, vocab_size)
        executor = StepExecutor(runner.steps, Communicator(), self._board, self._stopwatch)
        sampler = Sampler(vocab_size, torch.device("cpu"))
        trace = trace or StepTrace("")
        largest = LargestStep.of(settings, self._max_model_len)
        core = EngineCore(scheduler, blocks, executor, sampler, self._stopwatch, trace, largest)
        return Running(core, scheduler, blocks, self._stopwatch)

    def _runner(self, paged: bool) -> LoadedModel:
        if paged not in self._runners:
            token_bytes = describe(self._settings).kv_bytes_per_token("fp32", 1)
            self._runners[paged] = load(
                self._settings,
                CacheConfig(self._block_size, paged, self._num_blocks * self._block_size * token_bytes),
                self._max_step_tokens,
                max_num_seqs=self._max_step_seqs,
                parallel=ParallelConfig(threads_per_rank=self._threads),
                stopwatch=self._stopwatch,
            )
        return self._runners[paged]


def greedy(name: str, prompt: Sequence[int], max_new_tokens: int, **fields: Any) -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_new_tokens), 0.0, **fields)


def run_all(
    running: Running, requests: Sequence[Request], *, gap: float = 0.0, seed: int = 0
) -> dict[str, list[int]]:
    """Return the tokens of each request. `gap`: mean number of steps between arrivals (exponential); 0: all at once."""
    rng = random.Random(seed)
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    waiting = list(requests)
    next_arrival = 0.0
    step = 0
    while waiting or running.core.has_work:
        while waiting and next_arrival <= step:
            running.core.add(waiting.pop(0))
            next_arrival += rng.expovariate(1 / gap) if gap else 0.0
        for output in running.core.step():
            _take(tokens, output)
        step += 1
    running.blocks.check()
    if running.blocks.num_used:
        raise AssertionError(f"{running.blocks.num_used} blocks are still in use")
    return tokens


def _take(tokens: dict[str, list[int]], output: RequestOutput) -> None:
    if output.error_kind:
        raise AssertionError(f"{output.id}: {output.error_message}")
    tokens[output.id].extend(output.token_ids)
