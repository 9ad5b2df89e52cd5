"""Metrics of an engine that plans steps before the previous step has ended, as on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines.config import SchedulerConfig
from engines.core import SampledToken, SchedulerSettings
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.step_runner import PendingTokens, StepResult
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step_plan import StepPlan
from engines.mpi.trace import StepTrace
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from tests.engines.mpi.fakes import NUM_IDS, make_request
from tests.engines.mpi.leader_lab import INFO, ScriptedSampler
from tests.engines.mpi.property_model import make_executor

_HOST, _DEVICE = 0.001, 0.02
"""Seconds that a step takes."""


class _Device:
    """A clock, and an executor that returns immediately and computes for `_DEVICE` seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._free = 0.0
        self._executor = make_executor(64, 4, None, LargestStep(64, 4, 64))

    def run_on_all_ranks(
        self, plan: StepPlan, targets: Any = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        self.now += _HOST
        self._free = max(self.now, self._free) + _DEVICE
        result = self._executor.run_on_all_ranks(plan, targets, rows)
        assert result.pending_tokens is not None
        return replace(result, pending_tokens=_TimedTokens(self, self._free, result.pending_tokens))

    def wait(self, moment: float) -> None:
        self.now = max(self.now, moment)


class _TimedTokens:
    host_rows: Sequence[int] = ()

    def __init__(self, device: _Device, ready: float, tokens: PendingTokens) -> None:
        self._device = device
        self._ready = ready
        self._tokens = tokens

    def wait(self) -> list[SampledToken]:
        self._device.wait(self._ready)
        return self._tokens.wait()


@pytest.fixture
def device() -> _Device:
    return _Device()


@pytest.fixture
def core(device: _Device) -> EngineCore:
    blocks = make_block_manager(64, 4, paged=True)
    settings = SchedulerSettings(4, 16, 64, 100)
    scheduler = Scheduler(SchedulerConfig(settings), blocks, 64, NUM_IDS)

    def clock() -> float:
        return device.now

    arguments: list[Any] = [scheduler, blocks, device, ScriptedSampler(), Stopwatch(clock), StepTrace("")]
    return EngineCore(*arguments, LargestStep.of(settings, 64), clock)


def _sum(core: EngineCore, name: str) -> float:
    (found,) = [one for one in core.stats(INFO).histograms if one.name == name]
    return found.sum


def test_queue_time_ends_when_the_first_step_of_a_request_is_planned(
    device: _Device, core: EngineCore
) -> None:
    core.add(make_request("first", max_new_tokens=9))
    core.step()
    core.step()
    arrival = device.now
    device.wait(arrival + 0.008)
    core.add(make_request("later", arrival_time=arrival, max_new_tokens=9))
    core.step()
    core.step()
    assert _sum(core, "lmi_queue_seconds") == pytest.approx(0.008)


def test_waiting_for_the_device_does_not_count_as_step_overhead(device: _Device, core: EngineCore) -> None:
    core.add(make_request("first", max_new_tokens=9))
    while core.has_work:
        core.step()
    assert device.now > 9 * _DEVICE
    assert _sum(core, "lmi_step_overhead_seconds") < _DEVICE
