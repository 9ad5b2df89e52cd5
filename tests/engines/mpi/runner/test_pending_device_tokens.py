"""The host waits for a GPU's tokens without delay, and shows meanwhile that it is alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from engines.core import SampledToken
from engines.mpi.runner import pending_device_tokens
from engines.mpi.runner.decode_graphs import DecodeOutputs
from engines.mpi.runner.pending_device_tokens import PendingDeviceTokens


@dataclass
class _Gpu:
    """A clock, and an event of it that completes at a given time."""

    ready: float
    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    beats: list[float] = field(default_factory=list)

    def query(self) -> bool:
        self.now += 2e-6
        return self.now >= self.ready

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def beat(self) -> None:
        self.beats.append(self.now)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> _Gpu:
    gpu = _Gpu(0.0)
    clock = SimpleNamespace(sleep=gpu.sleep, perf_counter=lambda: gpu.now)
    monkeypatch.setattr(pending_device_tokens, "time", clock)
    return gpu


def _wait(gpu: _Gpu, seconds: float) -> None:
    """Wait for a token that the GPU has after these seconds."""
    gpu.ready = seconds
    outputs = DecodeOutputs(torch.tensor([5]), torch.tensor([True]), None)
    pending = PendingDeviceTokens(outputs, [0], [], [], gpu.beat)
    pending._event = gpu  # type: ignore[assignment]
    assert pending.wait() == [SampledToken(5)]
    assert gpu.now >= seconds


def test_a_short_wait_neither_sleeps_nor_beats(gpu: _Gpu) -> None:
    _wait(gpu, 0.0009)
    assert gpu.slept == []
    assert gpu.beats == []


@pytest.mark.parametrize("seconds", [0.003, 0.02, 0.3])
def test_sleeps_delay_the_tokens_by_little(gpu: _Gpu, seconds: float) -> None:
    _wait(gpu, seconds)
    assert gpu.now - seconds < 60e-6 + 0.011 * seconds


def test_a_long_step_shows_all_the_time_that_the_rank_is_alive(gpu: _Gpu) -> None:
    _wait(gpu, 30.0)
    gaps = [after - before for before, after in zip([0.0, *gpu.beats], [*gpu.beats, 30.0], strict=True)]
    assert max(gaps) < 0.01
    assert len(gpu.slept) < 20_000


def test_a_gpu_that_hangs_is_noticed(gpu: _Gpu) -> None:
    _wait(gpu, 100.0)
    assert 59.0 < gpu.beats[-1] < 60.0


def test_without_a_gpu_nothing_is_waited_for(gpu: _Gpu) -> None:
    outputs = DecodeOutputs(torch.tensor([5]), torch.tensor([True]), None)
    assert PendingDeviceTokens(outputs, [0], [], [], gpu.beat).wait() == [SampledToken(5)]
    assert gpu.slept == gpu.beats == []
