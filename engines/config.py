"""What an engine is told at its start. Frozen; every value is decided (no 'auto') before an engine sees it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which weights, in which precision."""

    path: str
    """Local folder with config.json and safetensors files."""
    name: str
    """What the user called it (`option.model_id`); for logs and replies only."""
    dtype: str
    """`fp32`, `fp16` or `bf16`: what the weights are stored as. On a CPU products are computed in fp32."""
    max_model_len: int
    """Longest prompt plus output, tokens."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How the model is spread over processes."""

    tp_size: int = 1
    """Number of ranks that share each layer."""
    device: str = "cpu"
    """`cpu` or `cuda`; rank r uses the r-th visible GPU."""
    threads_per_rank: int = 1
    """Compute threads of each rank on a CPU."""


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


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a step may hold."""

    max_num_seqs: int
    """Sequences running at once."""
    max_prefill_tokens: int
    """Prompt tokens in one step, over all sequences."""
    max_waiting: int
    """Requests waiting for a place; more are refused."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All an engine is told."""

    engine: str
    """`MPI` or `Python`, as in serving.properties."""
    model: ModelSettings
    parallel: ParallelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        data: dict[str, Any] = json.loads(text)
        return cls(
            engine=data["engine"],
            model=ModelSettings(**data["model"]),
            parallel=ParallelConfig(**data["parallel"]),
            cache=CacheConfig(**data["cache"]),
            scheduler=SchedulerConfig(**data["scheduler"]),
        )
