"""One rank's model and cache: a step plan in, on rank 0 what it gave out."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.config import MpiEngineConfig
from engines.kv_cache import KvCache
from engines.layers.rotary import rotary_tables
from engines.models import MODELS
from engines.models.blocks import Parts
from engines.models.config import ModelConfig, element_bytes
from engines.models.decoder import Decoder
from engines.models.loading import weight_source
from engines.models.native import record_forward
from engines.mpi.runner import memory
from engines.mpi.runner.cpu_steps import CpuSteps
from engines.mpi.runner.decode_graphs import batch_sizes, graphs_bytes
from engines.mpi.runner.gpu_steps import GpuSteps, TableShape
from engines.mpi.runner.largest_step import NUM_BLOCKS, LargestStep, run_largest
from engines.mpi.runner.memory import MemoryUse
from engines.mpi.runner.native_steps import NativeSteps
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.rehearsal import rehearse
from engines.mpi.runner.step_runner import LaidOut, StepResult, StepRunner
from engines.mpi.scheduler.step_plan import StepPlan
from engines.native_kv_cache import NativeKvCache
from engines.parallel import Communicator
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from lmi_kernels import runs_triton
from lmi_kernels.cpu import NotRecorded, Storage, Team, shared_team

logger = logging.getLogger(__name__)

_KV_STORAGES = {"fp32": Storage.FP32, "bf16": Storage.BF16, "fp16": Storage.FP16, "int8": Storage.INT8}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_FIRST_USE_BYTES = 64 * 1024**2
"""On a CPU the first step brings in code and scratch memory of the libraries, about so much."""
_SPARE = 1.1
"""The largest step may take so much more than what was measured: memory is never filled without gaps."""
_PROFILED_LAYERS = 2
"""On a CPU the largest step's memory is measured with so many layers: each takes what the one before gave back."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading took and read."""

    seconds: dict[str, float]
    owned_bytes: int
    """Bytes of this rank's parameters as stored."""
    predicted: MemoryUse
    actual: MemoryUse


class ModelRunner:
    """Loads this rank's part at construction; `update`, `prepare` and `compute` run one step."""

    def __init__(
        self, config: MpiEngineConfig, comm: Communicator, device: torch.device, stopwatch: Stopwatch
    ) -> None:
        """
        Raises:
            BadCheckpoint, UnsupportedModel: the model's files are not what they should be.
            ValueError: the KV cache does not fit what was asked for, or what is free.
        """
        self._comm = comm
        self._device = device
        self.config = ModelConfig.from_folder(Path(config.model.path))
        storage = DTYPES[config.model.dtype]
        # No bf16 or fp16 product on a CPU: there is no hardware path, see `lmi_kernels.linear`.
        self._dtype = torch.float32 if device.type == "cpu" else storage
        self._stopwatch = stopwatch
        self._team = None if runs_triton(device) else shared_team()
        """Of native kernels; None: there are none, or the model is not for them."""
        before, started = memory.in_use(device), time.perf_counter()
        compute = self._dtype if self._team is None else None
        if self._team is None and (
            config.model.quantize != "none" or config.cache.dtype not in ("auto", "fp32")
        ):
            raise ValueError("quantised weights and small KV caches are for native CPU kernels")
        weights = weight_source(config.model, self.config.dtype, storage, compute, device)
        parts = Parts(self.config, weights, comm, stopwatch)
        self._model: Decoder = MODELS[self.config.architecture](parts)
        weights.close()
        loaded = time.perf_counter()
        weight_bytes = memory.in_use(device) - before
        self._tables = rotary_tables(self.config.rotaries, config.model.max_model_len, device)
        self._kv_dtype = config.cache.dtype
        if self._kv_dtype == "auto":
            self._kv_dtype = "fp32" if self._dtype is torch.float32 else config.model.dtype
        self.kv_bytes_per_token = self.config.kv_bytes_per_token(self._kv_dtype, comm.world_size)
        """Of the KV cache, over all ranks."""
        self._kv_heads = parts.head_share.keys_values.size
        self._team = self._team and self._recordable(self._team)
        step = LargestStep.of(config.scheduler.settings, config.model.max_model_len)
        self.largest_step = step
        """The step that memory is measured for: no later setting may allow a larger one."""
        predicted = self._predict(config, step)
        activations = self._profile(config, step)
        profiled = time.perf_counter()
        stopwatch.reset()
        self.cache = self._make_cache(config, step, weight_bytes, int(activations * _SPARE))
        cached = time.perf_counter()
        self._steps = self._make_steps(config, step, self.cache)
        if isinstance(self._steps, GpuSteps) and device.type == "cuda":
            rehearse(step, self._steps, config.cache.block_size)
        rehearsed = time.perf_counter()
        if isinstance(self._steps, GpuSteps) and not config.parallel.enforce_eager:
            self._steps.capture(batch_sizes(step.num_decodes))
        seconds = {
            "weights": loaded - started,
            "profile": profiled - loaded,
            "cache": cached - profiled,
            "kernels": rehearsed - cached,
            "graphs": time.perf_counter() - rehearsed,
        }
        actual = MemoryUse(weight_bytes, activations, self.cache.num_bytes)
        self.load_report = LoadReport(seconds, weights.owned_bytes, predicted, actual)

    def update(self, plan: StepPlan) -> None:
        """As `StepRunner`."""
        self._steps.update(plan)

    def prepare(self, plan: StepPlan) -> LaidOut:
        """As `StepRunner`."""
        return self._steps.prepare(plan)

    def compute(
        self, batch: LaidOut, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """As `StepRunner`."""
        return self._steps.compute(batch, targets, rows)

    def close(self) -> None:
        """Give back what must be gone before the ranks' group is: see `GpuSteps.close`."""
        if isinstance(self._steps, GpuSteps):
            self._steps.close()

    def _make_steps(
        self,
        config: MpiEngineConfig,
        step: LargestStep,
        cache: KvCache | NativeKvCache,
        num_layers: int | None = None,
    ) -> StepRunner:
        leads = self._comm.rank == 0
        if self._team is not None and isinstance(cache, NativeKvCache):
            return NativeSteps(
                self._model,
                cache,
                self._tables,
                self._team,
                config.model.max_model_len,
                step.num_tokens,
                step.num_decodes,
                leads,
                self._stopwatch,
                num_layers,
            )
        if isinstance(cache, NativeKvCache):
            raise ValueError("a native KV cache is for native kernels")
        if runs_triton(self._device):
            return GpuSteps(
                self._model,
                cache,
                self._tables,
                self.config,
                self._kv_heads,
                self._comm,
                TableShape(step.num_seqs, config.model.max_model_len),
                num_layers,
            )
        return CpuSteps(self._model, cache, self._tables, leads, num_layers)

    def _predict(self, config: MpiEngineConfig, step: LargestStep) -> MemoryUse:
        """From the configuration alone, before anything is measured."""
        ranks, on_gpu = self._comm.world_size, self._device.type == "cuda"
        model = config.model
        element = self._dtype.itemsize
        if self._device.type == "cpu":
            native = self._team is not None
            element = element_bytes(self.config.dtype, model.dtype, model.quantize, native)
        weights = self.config.weight_bytes(element, ranks)
        first_use = 0 if on_gpu else _FIRST_USE_BYTES
        activations = step.predict(self.config, ranks, self._dtype.itemsize, first_use)
        if config.cache.kv_cache_bytes is not None:
            return MemoryUse(weights, activations, config.cache.kv_cache_bytes // ranks)
        total = torch.cuda.mem_get_info(self._device)[1]
        cache = int(total * config.cache.gpu_memory_utilization) - weights - activations
        return MemoryUse(weights, activations, max(0, cache))

    @torch.inference_mode()
    def _profile(self, config: MpiEngineConfig, step: LargestStep) -> int:
        """Bytes that the largest step takes on this rank while it runs."""
        num_layers = self.config.num_layers
        if self._device.type == "cpu":
            num_layers = min(num_layers, _PROFILED_LAYERS)

        def steps() -> StepRunner:
            cache = self._new_cache(NUM_BLOCKS, config.cache.block_size, num_layers)
            return self._make_steps(config, step, cache, num_layers)

        def compute() -> None:
            run_largest(step, steps(), config.cache.block_size, self.config.vocab_size, self._device)

        computing = memory.measure_peak(self._device, compute)
        if self._device.type != "cuda" or config.parallel.enforce_eager:
            return computing
        # Graphs keep theirs while other steps compute.
        graphs = self._profile_graphs(steps(), batch_sizes(step.num_decodes))
        memory.give_back()
        return computing + graphs

    def _profile_graphs(self, steps: StepRunner, sizes: Sequence[int]) -> int:
        """Bytes that graphs of these sizes hold."""
        if not isinstance(steps, GpuSteps):
            return 0
        held = graphs_bytes(
            sizes, lambda size: memory.measure_held(self._device, lambda: steps.capture([size]))
        )
        steps.close()
        return held

    def _make_cache(
        self, config: MpiEngineConfig, step: LargestStep, weights: int, activations: int
    ) -> KvCache | NativeKvCache:
        block_size, asked = config.cache.block_size, config.cache.kv_cache_bytes
        block_bytes = block_size * self.kv_bytes_per_token
        local_block_bytes = self._local(block_bytes)
        if asked is not None:
            num_blocks = asked // block_bytes
        else:
            utilization = config.cache.gpu_memory_utilization
            left = memory.gpu_cache_bytes(self._device, utilization, activations)
            num_blocks = max(0, left) // local_block_bytes
        num_blocks = self._comm.smallest(num_blocks)
        capacity = num_blocks * block_size
        if capacity < config.model.max_model_len:
            raise ValueError(
                f"the KV cache holds {capacity} tokens, option.max_model_len is {config.model.max_model_len}: "
                "lower it, or raise option.kv_cache_gb (option.gpu_memory_utilization on a GPU)"
            )
        if asked is not None:
            self._require_fit(num_blocks * block_bytes, activations, weights, step)
        return self._new_cache(num_blocks, block_size, self.config.num_layers)

    def _require_fit(self, cache: int, activations: int, weights: int, step: LargestStep) -> None:
        """cache: over all ranks. Ranks on CPUs share one memory, those on GPUs have each their own."""
        # Asking for the largest of all also waits for all: then everybody's weights are where they stay. And all
        # come to the same end.
        activations, weights = -self._comm.smallest(-activations), -self._comm.smallest(-weights)
        free = self._comm.smallest(memory.free_bytes(self._device))
        ranks = self._comm.world_size
        if self._device.type == "cuda":
            cache, ranks = -self._comm.smallest(-self._local(cache)), 1
        memory.require_fit(cache, activations * ranks, weights * ranks, free, step.num_tokens)

    def _local(self, cache: int) -> int:
        """This rank's part of bytes of the cache over all ranks. Beyond as many ranks as KV heads each has one."""
        return cache // max(self.config.num_kv_heads, self._comm.world_size) * self._kv_heads

    def _new_cache(self, num_blocks: int, block_size: int, num_layers: int) -> KvCache | NativeKvCache:
        shape = num_layers, self._kv_heads, num_blocks, block_size, self.config.head_dim
        if self._team is not None:
            return NativeKvCache(*shape, _KV_STORAGES[self._kv_dtype])
        return KvCache(*shape, self._dtype, self._device)

    def _recordable(self, team: Team) -> Team | None:
        """The team if the model can be recorded as a native program."""
        cache = self._new_cache(1, 1, self.config.num_layers)
        try:
            record_forward(self._model, cache, self._tables, team, 1, None)
        except NotRecorded as reason:
            logger.info("native kernels are called operation by operation: %s", reason)
            return None
        return team
