"""Engine processes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engines.config import MpiEngineConfig
from tests.support.engine_process import EngineProcess

StartEngine = Callable[[MpiEngineConfig], EngineProcess]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Function that starts an engine and waits until it is ready. The engines end with the test."""
    engines: list[EngineProcess] = []

    def start(config: MpiEngineConfig) -> EngineProcess:
        engines.append(EngineProcess(config))
        engines[-1].wait_ready()
        return engines[-1]

    yield start
    for engine in engines:
        engine.destroy()
