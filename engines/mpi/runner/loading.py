"""Load one rank's model, measure its memory, and create the KV cache and the step runner."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from engines.config import MpiEngineConfig
from engines.kv_cache import KvCache
from engines.layers.rotary import RotaryTables, rotary_tables
from engines.models.config import ModelConfig
from engines.models.decoder import Decoder, Model
from engines.models.loading import describe, make_model, weight_source
from engines.models.native import EagerModel, NativeModel, RecordedModel, record_forward
from engines.models.parts import Parts
from engines.models.progress import LoadProgress
from engines.mpi.cache.window import Window, request_blocks
from engines.mpi.runner import budget, memory
from engines.mpi.runner.cpu_steps import CpuSteps
from engines.mpi.runner.decode_graphs import batch_sizes, graphs_bytes
from engines.mpi.runner.gpu_steps import GpuSteps
from engines.mpi.runner.kernel_warmup import warm_up_kernels
from engines.mpi.runner.largest_run import run_largest
from engines.mpi.runner.largest_step import NUM_BLOCKS, SCORED_TOKENS, LargestStep
from engines.mpi.runner.native_steps import NativeSteps
from engines.mpi.runner.step_runner import StepRunner
from engines.native_kv_cache import NativeKvCache
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels import runs_triton
from lmi_kernels.cpu import NotRecorded, StepInput, Storage, Team, shared_team

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_PROFILED_LAYERS = 3
"""Number of layers with which the memory of the largest step is measured on a CPU: each layer but the last
reuses the memory of the previous one, and the last one may compute fewer rows."""


@dataclass(slots=True)
class LoadReport:
    """Statistics of loading."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by part."""
    owned_bytes: int = 0
    """Bytes of this rank's parameters, as stored."""
    bytes_read: int = 0
    """Bytes read from the model's files for these parameters."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes by use: `weights`, `activations` (taken by the largest step while it runs) and `KV cache`."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One rank's model, with its steps and its cache."""

    config: ModelConfig
    steps: StepRunner
    cache: KvCache | NativeKvCache
    kv_bytes_per_token: int
    """Bytes per token of the KV cache, over all ranks."""
    largest_step: LargestStep
    """Step that memory was measured for. No later setting may allow a larger one."""
    report: LoadReport

    @property
    def window(self) -> Window | None:
        """Sliding window of the model; None if a layer sees all tokens."""
        return Window.of(self.config.window, self.largest_step.num_tokens)

    def close(self) -> None:
        """Free everything that must be freed before the ranks leave their group; see `GpuSteps.close`."""
        if isinstance(self.steps, GpuSteps):
            self.steps.close()


def load_model(
    config: MpiEngineConfig, comm: Communicator, device: torch.device, stopwatch: Stopwatch
) -> LoadedModel:
    """Load this rank's part of the model, measure the largest step, and create the cache in the remaining memory.

    Raises:
        BadCheckpoint, UnsupportedModel: the model's files are invalid or not supported.
        ValueError: the KV cache does not fit the configuration or the free memory.
    """
    report = LoadReport()
    with _timed(report, "weights"):
        part = _load_part(config, comm, device, stopwatch, report)
    largest = LargestStep.of(config.scheduler.settings, config.model.max_model_len)
    with _timed(report, "profile"):
        activations = part.measure(largest)
    stopwatch.reset()
    with _timed(report, "cache"):
        cache = part.make_cache(
            largest, report.memory["weights"], int(activations * budget.ACTIVATION_HEADROOM)
        )
    steps = part.make_steps(largest, cache)
    with _timed(report, "kernels"):
        if isinstance(steps, GpuSteps) and device.type == "cuda":
            warm_up_kernels(largest, steps, config.cache.block_size)
    with _timed(report, "graphs"):
        if isinstance(steps, GpuSteps) and not config.parallel.enforce_eager:
            steps.capture(batch_sizes(largest.num_decodes))
    report.memory |= {"activations": activations, "KV cache": cache.num_bytes}
    return LoadedModel(part.model_config, steps, cache, part.kv_bytes_per_token, largest, report)


@contextmanager
def _timed(report: LoadReport, part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    report.seconds[part] = time.perf_counter() - started


def _load_part(
    config: MpiEngineConfig,
    comm: Communicator,
    device: torch.device,
    stopwatch: Stopwatch,
    report: LoadReport,
) -> _ModelPart:
    model_config = describe(config.model)
    storage = DTYPES[config.model.dtype]
    # No bf16 or fp16 product on a CPU, which lacks a hardware path: see `lmi_kernels.linear`.
    dtype = torch.float32 if device.type == "cpu" else storage
    team = None if runs_triton(device) else shared_team()
    if team is None and (config.model.quantize != "none" or config.cache.dtype not in ("auto", "fp32")):
        raise ValueError("quantized weights and 8-bit or 16-bit KV caches require native CPU kernels")
    kv_dtype = config.cache.stored_dtype(device.type, config.model.dtype)
    before = memory.bytes_in_use(device)
    compute = dtype if team is None else None
    weights = weight_source(config.model, model_config.dtype, storage, compute, device, comm)
    parts = Parts(model_config, weights, comm, stopwatch)
    progress = LoadProgress(time.perf_counter) if comm.rank == 0 else None
    weights.prefetch(lambda source: make_model(replace(parts, weights=source)), progress)
    model = make_model(parts)
    weights.close()
    report.owned_bytes, report.bytes_read = weights.owned_bytes, weights.bytes_read
    report.memory["weights"] = memory.bytes_in_use(device) - before
    tables = rotary_tables(model_config.rotaries, config.model.max_model_len, device)
    kv_heads = parts.head_share.kv_heads.size
    part = _ModelPart(
        config, model_config, model, tables, comm, device, stopwatch, dtype, kv_dtype, kv_heads, team
    )
    part.recorded = team is not None and part.is_recordable(team)
    # A rank without bounds of its logits computes all of them, so the others must too.
    part.has_greedy_head = bool(comm.all_reduce_min(int(part.recorded and model.largest_logits is not None)))
    if not part.recorded and isinstance(model, Decoder):
        part.team = None
    return part


@dataclass(slots=True)
class _ModelPart:
    """One rank's part of a model, from which cache and steps are created."""

    config: MpiEngineConfig
    model_config: ModelConfig
    model: Model
    tables: RotaryTables
    comm: Communicator
    device: torch.device
    stopwatch: Stopwatch
    dtype: torch.dtype
    kv_dtype: str
    kv_heads: int
    team: Team | None
    """Threads of native kernels; None if there are no native kernels, or the model does not use them."""
    recorded: bool = False
    """Whether native kernels run the model as recorded programs."""
    has_greedy_head: bool = False
    """Whether all ranks can find the largest logits without computing all of them."""

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model_config.kv_bytes_per_token(self.kv_dtype, self.comm.world_size)

    def make_steps(self, step: LargestStep, cache: KvCache | NativeKvCache) -> StepRunner:
        if isinstance(cache, NativeKvCache):
            if self.team is None:
                raise ValueError("a native KV cache requires native kernels")
            return NativeSteps(
                self._native_model(step, cache, self.team),
                cache,
                StepInput(
                    self.team.library,
                    step.num_tokens,
                    self.config.model.max_model_len,
                    cache.num_blocks,
                    cache.block_size,
                ),
                step.num_decodes,
                self.stopwatch,
            )
        if runs_triton(self.device):
            return GpuSteps(
                self.model,
                cache,
                self.tables,
                self.model_config,
                self.kv_heads,
                self.comm,
                step,
                self.stopwatch,
            )
        return CpuSteps(self.model, cache, self.tables, self.stopwatch)

    def _native_model(self, step: LargestStep, cache: NativeKvCache, team: Team) -> NativeModel:
        if not self.recorded:
            return EagerModel(self.model, cache, team)
        max_logits = max(step.num_decodes, min(SCORED_TOKENS, step.num_tokens))
        return RecordedModel(
            self.model,
            cache,
            self.tables,
            team,
            step.num_tokens,
            max_logits,
            has_greedy_head=self.has_greedy_head,
        )

    @torch.inference_mode()
    def measure(self, step: LargestStep) -> int:
        """Return the bytes that the largest step takes on this rank while it runs."""
        num_layers, block_size = self.model_config.num_layers, self.config.cache.block_size
        if self.device.type == "cpu":
            num_layers = min(num_layers, _PROFILED_LAYERS)

        def steps() -> StepRunner:
            return self.make_steps(step, self._new_cache(NUM_BLOCKS, block_size, num_layers))

        def compute() -> None:
            run_largest(step, steps(), block_size, self.model_config.vocab_size, self.device)

        computing = memory.measure_peak(self.device, compute)
        if self.device.type != "cuda" or self.config.parallel.enforce_eager:
            return computing
        # Graphs keep their memory while other steps compute.
        graphs = self._measure_graphs(steps(), batch_sizes(step.num_decodes))
        memory.empty_cache()
        return computing + graphs

    def _measure_graphs(self, steps: StepRunner, sizes: Sequence[int]) -> int:
        """Return the bytes that graphs of these sizes hold."""
        if not isinstance(steps, GpuSteps):
            return 0
        held = graphs_bytes(
            sizes,
            lambda size, max_outside: memory.measure_held(
                self.device, lambda: steps.capture([size]), max_outside
            ),
        )
        steps.close()
        return held

    def make_cache(self, step: LargestStep, weights: int, activations: int) -> KvCache | NativeKvCache:
        cache = self.config.cache
        block_bytes = cache.block_size * self.kv_bytes_per_token
        if cache.kv_cache_bytes is not None:
            num_blocks = cache.kv_cache_bytes // block_bytes
        else:
            left = memory.gpu_cache_bytes(self.device, cache.gpu_memory_utilization, activations)
            num_blocks = max(0, left) // self._local(block_bytes)
        num_blocks = self.comm.all_reduce_min(num_blocks)
        capacity = num_blocks * cache.block_size
        longest = self.config.model.max_model_len
        if request_blocks(longest, cache, self.model_config.window, step.num_tokens) > num_blocks:
            is_fixed = cache.kv_cache_bytes is not None
            raise ValueError(memory.shortage(capacity, longest, weights, activations, is_fixed))
        if cache.kv_cache_bytes is not None:
            self._require_fit(num_blocks * block_bytes, activations, weights, step)
        return self._new_cache(num_blocks, cache.block_size, self.model_config.num_layers)

    def _require_fit(self, cache: int, activations: int, weights: int, step: LargestStep) -> None:
        """Check that the cache fits. Ranks on CPUs share one memory, ranks on GPUs have one each.

        cache: bytes over all ranks.
        """
        # Taking the maximum over all ranks also waits until every rank has loaded its weights, and gives all ranks the
        # same result.
        activations, weights = self.comm.all_reduce_max(activations), self.comm.all_reduce_max(weights)
        free = self.comm.all_reduce_min(memory.free_bytes(self.device))
        ranks = self.comm.world_size
        if self.device.type == "cuda":
            cache, ranks = self.comm.all_reduce_max(self._local(cache)), 1
        memory.require_fit(cache, activations * ranks, weights * ranks, free, step.num_tokens)

    def _local(self, cache: int) -> int:
        """Return this rank's part of `cache` bytes over all ranks."""
        return budget.local_bytes(cache, self.model_config.num_kv_heads, self.comm.world_size, self.kv_heads)

    def _new_cache(self, num_blocks: int, block_size: int, num_layers: int) -> KvCache | NativeKvCache:
        shape = num_layers, self.kv_heads, num_blocks, block_size, self.model_config.head_dim
        if self.team is not None:
            return NativeKvCache(*shape, Storage[self.kv_dtype.upper()])
        return KvCache(*shape, self.dtype, self.device)

    def is_recordable(self, team: Team) -> bool:
        """Return whether the model can be recorded as a native program."""
        cache = self._new_cache(1, 1, self.model_config.num_layers)
        try:
            record_forward(self.model, cache, self.tables, team, 1)
        except NotRecorded as reason:
            logger.info(
                "the model cannot run as one native program, so its operations run one by one (not supported: %s)",
                reason,
            )
            return False
        return True
