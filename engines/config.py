"""What an engine is told at its start. Frozen; every value is decided (no 'auto') before an engine sees it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from engines.core import SchedulerSettings


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which weights, in which precision."""

    path: str
    """Local folder with config.json and, unless `load_format` is `dummy`, safetensors files."""
    name: str
    """What the user called it (`option.model_id`); for logs and replies only."""
    dtype: str
    """`fp32`, `fp16` or `bf16`: what the weights are stored as. On a CPU products are computed in fp32."""
    max_model_len: int
    """Longest prompt plus output, tokens."""
    load_format: str = "auto"
    """`auto`: weights are read from files. `dummy`: they are random, and config.json alone is needed."""
    quantize: str = "none"
    """`int8`: matrices are rounded as they are loaded; native CPU kernels only."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How the model is spread over processes."""

    tp_size: int = 1
    """Number of ranks that share each layer."""
    device: str = "cpu"
    """`cpu` or `cuda`; rank r uses the r-th visible GPU."""
    threads_per_rank: int = 1
    """Compute threads of each rank on a CPU."""
    enforce_eager: bool = False
    """On a GPU, launch the kernels of decodes one by one; without it decodes are replayed as CUDA graphs."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache."""

    block_size: int
    """Tokens a block."""
    paged: bool
    """True: blocks are handed out as tokens come. False: one consecutive run a sequence, taken at admission."""
    kv_cache_bytes: int | None
    """Size over all ranks together; None on GPUs: what `gpu_memory_utilization` leaves after loading."""
    gpu_memory_utilization: float = 0.9
    """Share of each GPU's memory that weights, activations and KV cache may take."""
    prefix_caching: bool = False
    """Keep full pages of ended sequences for prompts that begin alike. Needs `paged`."""
    dtype: str = "auto"
    """What keys and values are stored as: `fp32`, `bf16`, `fp16` or `int8`; `auto`: what products are computed in."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who runs when."""

    settings: SchedulerSettings
    """In force from the start; the running engine may be given others."""
    batch_scheduler_policy: str = "guaranteed_no_evict"
    """`max_utilization`: a request is admitted while blocks are free; when they run out, somebody gives way and is
    computed again later. Needs a paged cache.
    `guaranteed_no_evict`: a request is admitted to the next step once what it may need at worst is free.
    `static_batch`: what waits is taken as one batch, and nothing is admitted until all of it has ended."""
    step_trace: str = ""
    """Path of a JSON-lines file to which rank 0 writes every step; empty: none."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """How engine=Python makes batches of requests."""

    batch_size: int
    """Requests in a batch, at most."""
    max_batch_delay: float
    """Seconds that a batch may wait to fill, from its first request on; not counted while another batch runs."""
    max_waiting: int
    """Requests waiting for a batch; more are refused."""
    batch_timeout: float
    """Seconds that a batch may run; what is not done then is stopped."""


@dataclass(frozen=True, slots=True)
class MpiEngineConfig:
    """All that engine=MPI is told."""

    model: ModelSettings
    parallel: ParallelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    engine: str = "MPI"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MpiEngineConfig:
        data: dict[str, Any] = json.loads(text)
        return cls(
            model=ModelSettings(**data["model"]),
            parallel=ParallelConfig(**data["parallel"]),
            cache=CacheConfig(**data["cache"]),
            scheduler=SchedulerConfig(
                **{**data["scheduler"], "settings": SchedulerSettings(**data["scheduler"]["settings"])}
            ),
            engine=data["engine"],
        )


@dataclass(frozen=True, slots=True)
class PythonEngineConfig:
    """All that engine=Python is told."""

    model: ModelSettings
    parallel: ParallelConfig
    """`tp_size` is the number of GPUs that the layers are spread over."""
    batching: BatchConfig
    trust_remote_code: bool = False
    """Run the code that comes with the model: asked for in the file, and allowed by who started the server."""
    engine: str = "Python"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PythonEngineConfig:
        data: dict[str, Any] = json.loads(text)
        return cls(
            model=ModelSettings(**data["model"]),
            parallel=ParallelConfig(**data["parallel"]),
            batching=BatchConfig(**data["batching"]),
            trust_remote_code=data["trust_remote_code"],
            engine=data["engine"],
        )


EngineConfig = MpiEngineConfig | PythonEngineConfig
