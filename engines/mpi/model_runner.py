"""One rank's model and cache: a step plan in, on rank 0 the logits of the sampling rows out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.config import MpiEngineConfig
from engines.kv_cache import KvCache
from engines.layers.rotary import RotaryTable
from engines.models import MODELS
from engines.models.config import ModelConfig
from engines.models.weights import WeightReader
from engines.mpi.batch import Batch, make_batch
from engines.mpi.step_plan import StepPlan
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels import batch_invariant_rows
from lmi_kernels.attention_plan import GroupLimits

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_GROUP_KEYS = 2048
"""Keys of an attention group: enough that calls are few, and few enough that what a gather wrote is still in the
processor's cache when attention reads it (measured with 3 heads of dimension 64: 1,000 to 2,500 are alike)."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading took and read."""

    seconds: dict[str, float]
    owned_bytes: int
    """Bytes of this rank's parameters as stored."""


class ModelRunner:
    """Loads this rank's part at construction; `prepare` and `compute` run one step."""

    def __init__(
        self, config: MpiEngineConfig, comm: Communicator, device: torch.device, stopwatch: Stopwatch
    ) -> None:
        """
        Raises:
            BadCheckpoint, UnsupportedModel: the model's files are not what they should be.
            ValueError: the KV cache does not fit what was asked for.
        """
        self._comm = comm
        self._device = device
        self.config = ModelConfig.from_folder(Path(config.model.path))
        storage = DTYPES[config.model.dtype]
        # No bf16 or fp16 product on a CPU: there is no hardware path, see `lmi_kernels.linear`.
        compute = torch.float32 if device.type == "cpu" else storage
        started = time.perf_counter()
        weights = WeightReader(Path(config.model.path), storage, compute, device)
        self._model = MODELS[self.config.architecture](self.config, weights, comm, stopwatch)
        weights.close()
        loaded = time.perf_counter()
        self._rotary = RotaryTable(self.config, config.model.max_model_len, device)
        self.cache = self._make_cache(config, compute)
        self._contiguous = not config.cache.paged
        kv_heads = self._model.num_kv_heads(self.config, comm.world_size, comm.rank)
        self._limits = GroupLimits(config.cache.block_size, self.cache.num_blocks, kv_heads, _GROUP_KEYS)
        seconds = {"weights": loaded - started, "cache": time.perf_counter() - loaded}
        self.load_report = LoadReport(seconds, weights.owned_bytes)

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> Batch:
        """Lay a step out as tensors. No communication: what goes wrong here can be agreed on before `compute`."""
        self.cache.scrub(list(plan.scrub_blocks))
        return make_batch(plan, self._rotary, self._limits, self._contiguous, self._device)

    @torch.inference_mode()
    def compute(self, batch: Batch) -> torch.Tensor | None:
        """Run the model. Returns [num_sampled, vocab_size] on rank 0 when any sequence samples, else None.

        Computing a step again is harmless: the same keys and values go to the same slots.
        """
        hidden = self._model.forward(batch.input_ids, self.cache, batch.metadata)
        num_sampled = len(batch.sample_rows)
        if num_sampled == 0:
            return None
        rows = batch.sample_rows
        padding = batch_invariant_rows(num_sampled) - num_sampled
        if padding:
            rows = torch.cat((rows, rows[:1].expand(padding)))
        logits: torch.Tensor | None = self._model.logits(hidden[rows])
        return None if logits is None else logits[:num_sampled]

    def _make_cache(self, config: MpiEngineConfig, dtype: torch.dtype) -> KvCache:
        block_size = config.cache.block_size
        token_bytes = self.config.kv_elements_per_token * dtype.itemsize
        local_heads = self._model.num_kv_heads(self.config, self._comm.world_size, self._comm.rank)
        if config.cache.kv_cache_bytes is not None:
            num_blocks = config.cache.kv_cache_bytes // (token_bytes * block_size)
        else:
            local_token_bytes = token_bytes * local_heads // self.config.num_kv_heads
            num_blocks = self._free_gpu_bytes(config) // (local_token_bytes * block_size)
        num_blocks = self._comm.smallest(num_blocks)
        capacity = num_blocks * block_size
        if capacity < config.model.max_model_len:
            raise ValueError(
                f"the KV cache holds {capacity} tokens, option.max_model_len is {config.model.max_model_len}: "
                "lower it, or raise option.kv_cache_gb (option.gpu_memory_utilization on a GPU)"
            )
        return KvCache(
            self.config.num_layers,
            local_heads,
            num_blocks,
            block_size,
            self.config.head_dim,
            dtype,
            self._device,
        )

    def _free_gpu_bytes(self, config: MpiEngineConfig) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        # The logits and activations of the largest step, in fp32, twice: they come and go beside the cache.
        tokens = config.scheduler.max_prefill_tokens + config.scheduler.max_num_seqs
        widest = max(4 * self.config.intermediate_size, 8 * self.config.hidden_size)
        step = 8 * (tokens * widest + config.scheduler.max_num_seqs * self.config.vocab_size)
        return max(0, int(free - total * (1 - config.cache.gpu_memory_utilization)) - step)
