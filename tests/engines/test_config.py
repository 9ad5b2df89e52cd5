"""Engine configurations and their JSON form, in which they are passed to the engine process."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings

_COUNTS = st.integers(1, 2**40)
_CONFIGS = st.builds(
    MpiEngineConfig,
    model=st.builds(
        ModelSettings,
        path=st.text(),
        name=st.text(),
        dtype=st.sampled_from(["fp32", "fp16", "bf16"]),
        max_model_len=_COUNTS,
    ),
    parallel=st.builds(
        ParallelConfig, tp_size=_COUNTS, device=st.sampled_from(["cpu", "cuda"]), threads_per_rank=_COUNTS
    ),
    cache=st.builds(
        CacheConfig,
        block_size=_COUNTS,
        paged=st.booleans(),
        kv_cache_bytes=st.none() | _COUNTS,
        gpu_memory_utilization=st.floats(0, 1),
    ),
    scheduler=st.builds(SchedulerConfig, settings=st.builds(SchedulerSettings)),
)


@given(_CONFIGS)
def test_a_configuration_survives_json(config: MpiEngineConfig) -> None:
    assert MpiEngineConfig.from_json(config.to_json()) == config


@given(_CONFIGS, st.data())
def test_an_unknown_field_raises(config: MpiEngineConfig, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["model", "parallel", "cache", "scheduler"]))
    text = json.loads(config.to_json())
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
