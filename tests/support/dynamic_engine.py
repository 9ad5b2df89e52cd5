"""Processes of engine=Python, driven through their socket and status board."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from engines.client import ClientStream
from engines.config import BatchConfig, ModelSettings, ParallelConfig, PythonEngineConfig
from engines.core import Request, SamplingParams
from tests.support import processes
from tests.support.engine_process import MAX_MODEL_LEN, EngineProcess


def make_dynamic_config(
    model: Path, *, batch_timeout: float = 60.0, dtype: str = "fp32"
) -> PythonEngineConfig:
    """A configuration with one CPU thread, and batches of up to 8 that wait 50 ms."""
    return PythonEngineConfig(
        model=ModelSettings(str(model), "tiny", dtype, MAX_MODEL_LEN),
        parallel=ParallelConfig(1, "cpu", 1),
        batching=BatchConfig(8, 0.05, 100, batch_timeout),
    )


class DynamicEngine(EngineProcess):
    """A dispatcher and its generating process. Call `wait_ready` before use, and `destroy` in any case."""

    module = "engines.python.dispatcher"
    num_heartbeats = 2

    def generating_process(self) -> psutil.Process | None:
        """The running process that generates, if there is one."""
        for process in processes.descendants(self._popen.pid):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                if "engines.python.worker" in process.cmdline():
                    return process
        return None

    def ask(
        self, name: str, prompt: Sequence[int], sampling: SamplingParams, arrival_time: float = 0.0
    ) -> ClientStream:
        return self.client.submit(Request(name, tuple(prompt), sampling, arrival_time))
