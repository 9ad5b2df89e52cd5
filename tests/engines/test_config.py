"""Engine configurations and their JSON form, in which they are passed to the engine process."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import fields, replace

import pytest

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings

_CONFIG = MpiEngineConfig(
    ModelSettings("/models/größer", "name", "bf16", 2**40),
    ParallelConfig(tp_size=2, device="cuda", threads_per_rank=3),
    CacheConfig(block_size=16, paged=False, kv_cache_bytes=None, gpu_memory_utilization=0.5),
    SchedulerConfig(SchedulerSettings(4, 5, 6, 7, max_queued_tokens=8)),
)


@pytest.mark.parametrize("kv_cache_bytes", [None, 2**40])
def test_a_configuration_survives_json(kv_cache_bytes: int | None) -> None:
    config = replace(_CONFIG, cache=replace(_CONFIG.cache, kv_cache_bytes=kv_cache_bytes))
    assert MpiEngineConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("part", ["model", "parallel", "cache", "scheduler"])
def test_an_unknown_field_raises(part: str) -> None:
    text = json.loads(_CONFIG.to_json())
    text[part]["unknown"] = 1
    with pytest.raises(TypeError, match="unknown"):
        MpiEngineConfig.from_json(json.dumps(text))


@pytest.mark.parametrize(
    "part", [ModelSettings, ParallelConfig, CacheConfig, SchedulerConfig, MpiEngineConfig]
)
def test_configurations_are_immutable(part: type) -> None:
    name = fields(part)[0].name
    values = {field.name: 1 for field in fields(part)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(part(**values), name, 2)
