"""Made-up servers, models and step times for tests of the simulator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from container.explain.prediction.memory import read_model
from container.explain.target import device_target
from container.measure.bench.arrivals import Arrivals, Burst
from container.measure.bench.lengths import Fixed, Lengths
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import Workload
from container.measure.simulate.server import SimulatedServer
from container.measure.simulate.step_times import StepSeconds
from engines.config import (
    BatchConfig,
    CacheConfig,
    ModelSettings,
    MpiEngineConfig,
    ParallelConfig,
    PythonEngineConfig,
    SchedulerConfig,
)
from engines.core import SchedulerSettings
from engines.models.config import ModelConfig
from tests.support.published_models import PUBLISHED

FALCON_40B, LLAMA_8B = PUBLISHED["falcon-40b"], PUBLISHED["llama-3-8b"]
EIGHT = device_target("A10G", 8)


@dataclass(frozen=True)
class Times:
    """The same time for every step."""

    device: float = 0.01
    host: float = 0.0

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        return StepSeconds(self.host, self.device)

    def describe(self) -> str:
        return "made up"


def write_model(folder: Path, values: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def make_description(folder: Path) -> ModelConfig:
    model = read_model(folder)
    assert model is not None
    return model


def rolling_server(
    folder: Path, *, num_blocks: int = 256, block_size: int = 16, device: str = "cpu", **changes: Any
) -> SimulatedServer:
    """`folder`: has a config.json. `changes`: fields of `SchedulerSettings`, `paged`, `prefix_caching`, `policy`."""
    model = make_description(folder)
    cache = CacheConfig(
        block_size, changes.pop("paged", True), None, prefix_caching=changes.pop("prefix_caching", True)
    )
    policy = changes.pop("policy", "max_utilization")
    settings = replace(SchedulerSettings(8, 64, 64, max_waiting=100_000), **changes)
    engine = MpiEngineConfig(
        ModelSettings(str(folder), "model", "fp32", 2048),
        ParallelConfig(1, device),
        cache,
        SchedulerConfig(settings, policy),
    )
    return SimulatedServer(engine, model, 240.0, num_blocks)


def dynamic_server(folder: Path, batch_size: int, delay: float = 0.1, device: str = "cpu") -> SimulatedServer:
    engine = PythonEngineConfig(
        ModelSettings(str(folder), "model", "fp32", 2048),
        ParallelConfig(1, device),
        BatchConfig(batch_size, delay, 1000, 240.0),
    )
    return SimulatedServer(engine, make_description(folder), 240.0)


def scenario(
    count: int,
    prompts: Lengths | int = 32,
    outputs: Lengths | int = 8,
    arrivals: Arrivals | None = None,
) -> Scenario:
    sizes = [Fixed(one) if isinstance(one, int) else one for one in (prompts, outputs)]
    return Scenario("test", Workload(sizes[0], sizes[1], count), arrivals or Burst())
