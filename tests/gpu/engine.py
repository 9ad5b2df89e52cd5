"""Run the rolling engine in this process without sockets, on a GPU or on a CPU with Triton's interpreter."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import AbortReason, Request, SamplingParams, SchedulerSettings
from engines.health import StatusBoard
from engines.models.architectures import read_config
from engines.models.config import ModelConfig
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.runner.decode_graphs import DecodeGraphs
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.loading import DTYPES, load_model
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.trace import StepTrace
from engines.parallel import Communicator
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from tests.gpu.timing import Deadline, synchronize
from tests.gpu.traces import Trace

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes for which the engine allocates memory when it starts."""

    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int
    cache_tokens: int | None
    """None: the cache gets what is left of `utilization` of the device's memory."""
    block_size: int = BLOCK_SIZE


class TotalStopwatch(Stopwatch):
    """Stopwatch that also adds up the times of all steps."""

    def __init__(self) -> None:
        super().__init__(time.perf_counter)
        self.totals: dict[str, float] = {}

    def reset(self) -> dict[str, float]:
        seconds = super().reset()
        for part, value in seconds.items():
            self.totals[part] = self.totals.get(part, 0.0) + value
        return seconds


@dataclass(slots=True)
class Running:
    core: EngineCore
    scheduler: Scheduler
    blocks: BlockManager


class Engine:
    """One loaded model with any number of schedulers, used one at a time."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        limits: Limits,
        *,
        dtype: str = "bf16",
        paged: bool = True,
        load_format: str = "dummy",
        utilization: float = 0.9,
        comm: Communicator | None = None,
    ) -> None:
        self.device = device
        self.limits = limits
        self.paged = paged
        self.stopwatch = TotalStopwatch()
        element = torch.float32.itemsize if device.type == "cpu" else DTYPES[dtype].itemsize
        per_token = read_config(folder).kv_bytes_per_token("fp32", 1) // 4 * element
        cache_bytes = None
        if limits.cache_tokens is not None:
            blocks = -(-limits.cache_tokens // limits.block_size)
            cache_bytes = blocks * limits.block_size * per_token
        self.comm = comm or Communicator()
        settings = SchedulerSettings(
            limits.max_num_seqs, limits.max_step_tokens, limits.max_step_tokens, max_waiting=100_000
        )
        config = MpiEngineConfig(
            model=ModelSettings(str(folder), folder.name, dtype, limits.max_model_len, load_format),
            parallel=ParallelConfig(1, device.type),
            cache=CacheConfig(limits.block_size, paged, cache_bytes, utilization),
            scheduler=SchedulerConfig(settings),
        )
        self.runner = load_model(config, self.comm, device, self.stopwatch)
        with tempfile.TemporaryDirectory() as board_folder:
            self._board = StatusBoard.create(Path(board_folder) / "status", 1)

    @property
    def config(self) -> ModelConfig:
        return self.runner.config

    def start(
        self,
        policy: str = "max_utilization",
        *,
        max_num_seqs: int | None = None,
        max_step_tokens: int | None = None,
        num_blocks: int | None = None,
        prefix_caching: bool = False,
    ) -> Running:
        """Return a new scheduler. Limits default to those of the engine."""
        limits = self.limits
        tokens = max_step_tokens or limits.max_step_tokens
        blocks = make_block_manager(
            num_blocks or self.runner.cache.num_blocks, limits.block_size, self.paged, prefix_caching
        )
        settings = SchedulerSettings(max_num_seqs or limits.max_num_seqs, tokens, tokens, max_waiting=100_000)
        vocab_size = self.config.vocab_size
        scheduler = Scheduler(SchedulerConfig(settings, policy), blocks, limits.max_model_len, vocab_size)
        executor = StepExecutor(self.runner.steps, self.comm, self._board, self.stopwatch)
        sampler = Sampler(vocab_size, self.device)
        largest = LargestStep.of(settings, limits.max_model_len)
        core = EngineCore(scheduler, blocks, executor, sampler, self.stopwatch, StepTrace(""), largest)
        return Running(core, scheduler, blocks)

    def fill_cache(self) -> None:
        """Fill the cache with random keys and values: kernels are faster on zeros than on real data."""
        for pool in self.runner.cache.layers:
            pool.normal_()

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Launch steps kernel by kernel, as if no graph had been captured."""
        steps = self.runner.steps
        graphs = steps._graphs
        steps._graphs = DecodeGraphs(steps._decode, self.device)
        try:
            yield
        finally:
            steps._graphs = graphs


def free(device: torch.device) -> None:
    """Free unreferenced memory, captured graphs and their memory included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


@dataclass(slots=True)
class Outcome:
    """Results of a set of requests."""

    tokens: dict[str, list[int]]
    logprobs: dict[str, list[float]] = field(default_factory=dict)
    """Log-probabilities of the requests that ask for them."""
    seconds: float = 0.0
    """Time from the first arrival to the last token."""
    steps: int = 0
    latencies: list[float] = field(default_factory=list)
    """Seconds from each request's arrival to its last token."""
    done: bool = True
    """False: the deadline passed before all requests had finished."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens.values()))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def run_requests(
    running: Running,
    requests: Sequence[Request],
    device: torch.device,
    *,
    users: int | None = None,
    deadline: Deadline | None = None,
) -> Outcome:
    """Run all requests. users: number of concurrent requests, the next starts when one finishes; None: all at once.

    Raises:
        AssertionError: a request failed, or blocks are still in use at the end.
    """
    outcome = Outcome({request.id: [] for request in requests})
    waiting = list(reversed(requests))
    arrived: dict[str, float] = {}
    core = running.core
    synchronize(device)
    started = time.perf_counter()
    while waiting or core.has_work:
        while waiting and (users is None or len(arrived) < users):
            request = waiting.pop()
            arrived[request.id] = time.perf_counter()
            core.add(request)
        for output in core.step():
            if output.error_kind:
                raise AssertionError(f"{output.id}: {output.error_message}")
            outcome.tokens[output.id].extend(output.token_ids)
            if output.logprobs:
                outcome.logprobs.setdefault(output.id, []).extend(output.logprobs)
            if output.finished:
                outcome.latencies.append(time.perf_counter() - arrived.pop(output.id))
        outcome.steps += 1
        if deadline is not None and deadline.passed:
            outcome.done = False
            for request_id in core.request_ids():
                core.abort(request_id, AbortReason.TIMEOUT)
            waiting.clear()
    synchronize(device)
    outcome.seconds = time.perf_counter() - started
    running.blocks.check()
    assert running.blocks.num_used == 0, f"{running.blocks.num_used} blocks were not freed"
    return outcome


def greedy(name: str, prompt: Sequence[int], max_new_tokens: int) -> Request:
    """Return a greedy request that ends only at `max_new_tokens`."""
    return Request(name, tuple(prompt), SamplingParams(max_new_tokens), time.monotonic())


def trace_requests(name: str, trace: Trace) -> list[Request]:
    pairs = zip(trace.prompts, trace.outputs, strict=True)
    return [greedy(f"{name} {i}", prompt, count) for i, (prompt, count) in enumerate(pairs)]


def random_prompts(vocab_size: int, lengths: Sequence[int], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]
