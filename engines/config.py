"""The configuration of an engine. Frozen; every value is resolved (no 'auto') before it reaches an engine."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

from engines.core import SchedulerSettings


class JsonConfig:
    """Conversion to and from JSON, for a dataclass whose fields may be dataclasses."""

    __slots__ = ()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises `TypeError` on a missing or an unknown field."""
        config: Self = _build(cls, json.loads(text))
        return config


def _build(kind: Any, data: Any) -> Any:
    if not dataclasses.is_dataclass(kind):
        return data
    kinds = get_type_hints(kind)
    return kind(**{name: _build(kinds.get(name), value) for name, value in data.items()})  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The model's weights and their precision."""

    path: str
    """Local folder with config.json and, unless `load_format` is `dummy`, safetensors files."""
    name: str
    """Name of the model as the user gave it (`option.model_id`); for logs and replies only."""
    dtype: str
    """Dtype of the stored weights: `fp32`, `fp16` or `bf16`. On a CPU products are computed in fp32."""
    max_model_len: int
    """Maximum length of prompt plus output, in tokens."""
    load_format: str = "auto"
    """`auto`: read weights from files. `dummy`: random weights; only config.json is needed. `stream`: files in
    `path` have headers only, and weights are read by `byte_ranges`."""
    quantize: str = "none"
    """`int8`: round matrices to int8 while loading; native CPU kernels only."""
    byte_ranges: str = ""
    """Class that streams weights, an `engines.models.byte_ranges.ByteRanges`, as "module:class"."""
    impl: str = "lmi"
    """`lmi`: our own model. `transformers`: a module of transformers, with our cache and linear layers."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Tensor parallelism, devices and threads."""

    tp_size: int = 1
    """Number of ranks that share each layer."""
    device: str = "cpu"
    """`cpu` or `cuda`; rank r uses the r-th visible GPU."""
    threads_per_rank: int = 1
    """Compute threads of each rank on a CPU."""
    copy: int = 0
    """Number of this copy of the model, from 1 on; 0 if it is the only one."""
    enforce_eager: bool = False
    """On a GPU, launch the kernels of decodes one by one instead of replaying CUDA graphs."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache."""

    block_size: int
    """Tokens per block."""
    paged: bool
    """True: blocks are allocated as tokens come. False: each sequence gets one consecutive run at admission."""
    kv_cache_bytes: int | None
    """Size in bytes over all ranks. None on GPUs: the memory that `gpu_memory_utilization` leaves after loading."""
    gpu_memory_utilization: float = 0.9
    """Share of each GPU's memory that weights, activations and KV cache may take."""
    prefix_caching: bool = False
    """Keep full pages of ended sequences for prompts with the same prefix. Needs `paged`."""
    dtype: str = "auto"
    """Dtype of keys and values: `fp32`, `bf16`, `fp16` or `int8`; `auto`: the dtype of products."""

    def stored_dtype(self, device: str, model_dtype: str) -> str:
        """Return the dtype of keys and values on a device, `cpu` or `cuda`."""
        if self.dtype != "auto":
            return self.dtype
        return "fp32" if device == "cpu" else model_dtype


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Scheduling of requests."""

    settings: SchedulerSettings
    """Settings at start-up; `PATCH /admin/scheduler` changes them."""
    batch_scheduler_policy: str = "guaranteed_no_evict"
    """`max_utilization`: admit a request while blocks are free. When blocks run out, preempt a sequence and recompute
    it later. Needs a paged cache.
    `guaranteed_no_evict`: admit a request once all blocks that it may need are free.
    `static_batch`: take the waiting requests as one batch, and admit none until all of them have ended.
    """
    step_trace: str = ""
    """Path of a JSON-lines file to which rank 0 writes every step; empty: no trace."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """Dynamic batching of engine=Python."""

    batch_size: int
    """Maximum number of requests in a batch."""
    max_batch_delay: float
    """Seconds that a batch may wait to fill, counted from its first request; the time of another batch does not
    count."""
    max_waiting: int
    """Maximum number of requests that wait for a batch; more are refused."""
    batch_timeout: float
    """Seconds that a batch may run; unfinished requests are then stopped."""


@dataclass(frozen=True, slots=True)
class MpiEngineConfig(JsonConfig):
    """The configuration of engine=MPI."""

    model: ModelSettings
    parallel: ParallelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    engine: str = "MPI"


@dataclass(frozen=True, slots=True)
class PythonEngineConfig(JsonConfig):
    """The configuration of engine=Python."""

    model: ModelSettings
    parallel: ParallelConfig
    """`tp_size` is the number of GPUs that the layers are spread over."""
    batching: BatchConfig
    trust_remote_code: bool = False
    """Run the code that comes with the model: requested by the properties, and allowed when the server was started."""
    engine: str = "Python"


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """A user's handler, and the processes that run it."""

    file: str
    """The Python file that has the handler."""
    function: str
    """Name of the function that is called with each request or batch. If the file has no such function, its
    decorated functions or those of the SageMaker inference toolkit are used."""
    properties: dict[str, str]
    """Options passed to the handler when it is loaded."""
    python: str
    """The Python interpreter of the workers."""
    min_workers: int
    """Number of processes that always run."""
    max_workers: int
    """Maximum number of processes. Those above `min_workers` are started while requests wait."""
    max_idle_seconds: float
    """Idle seconds after which a process above `min_workers` is stopped."""
    loading_timeout: float
    """Seconds that a worker may take to load when it is restarted."""
    worker_gpus: tuple[str, ...] = ()
    """Groups of GPUs, each as a value of `CUDA_VISIBLE_DEVICES`; worker n gets the n-th one. Empty without GPUs."""
    module: str = ""
    """Dotted name by which the model folder has the file; empty: the file is imported without a package."""


@dataclass(frozen=True, slots=True)
class HandlerEngineConfig(JsonConfig):
    """The configuration of engine=Python with a user's handler."""

    model: ModelSettings
    """The path is the folder of the handler; dtype and context length are not used."""
    parallel: ParallelConfig
    """`tp_size` is the number of GPUs that each worker is given."""
    batching: BatchConfig
    handler: HandlerSettings
    engine: str = "Handler"


EngineConfig = MpiEngineConfig | PythonEngineConfig | HandlerEngineConfig
