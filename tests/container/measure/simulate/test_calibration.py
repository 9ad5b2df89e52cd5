"""Step times fitted to traces with known step times."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from container.measure.bench.arrivals import OpenLoop
from container.measure.bench.lengths import Exponential, Uniform
from container.measure.bench.scenario import Scenario
from container.measure.simulate import calibration
from container.measure.simulate.calibration import calibrate, features, fit
from container.measure.simulate.server import CannotSimulateError
from container.measure.simulate.simulation import simulate
from container.measure.simulate.step_times import StepSeconds
from tests.container.measure.simulate.made_up import Times, rolling_server, scenario

TRUE = {"cpu": (5e-3, 0.0, 2e-4, 5e-5, 4e-7, 1e-8), "cuda": (5e-3, 1e-3, 2e-4, 5e-5, 4e-7, 1e-8)}
"""Coefficients by device. Only on GPUs do steps with prompts have a constant cost."""
LOAD = scenario(60, Uniform(10, 300), Exponential(30, 100), OpenLoop(4.0))


@dataclass
class KnownTimes:
    """Step times computed from `TRUE`, with optional noise and outliers."""

    noise: float = 0.0
    outliers: float = 0.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._rng = random.Random(1)

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        terms = zip(TRUE[self.device], features(starts, counts), strict=True)
        exact = sum(seconds * amount for seconds, amount in terms)
        if self._rng.random() < self.outliers:
            return StepSeconds(0.0, 5 * exact)
        return StepSeconds(0.0, exact * self._rng.uniform(1 - self.noise, 1 + self.noise))

    def describe(self) -> str:
        return "known"


@pytest.fixture
def trace(llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the trace of a server with the given step times."""

    def write(times: KnownTimes | Times, load: Scenario = LOAD, device: str = "cpu") -> Path:
        file = tmp_path / "trace.jsonl"
        simulate(rolling_server(llama, device=device), times, load, step_trace=str(file))
        return file

    return write


def test_features_of_a_mixed_step() -> None:
    """Two decodes, and tokens 7 to 10 of a prompt, which attend to 7 + 8 + 9 + 10 = 34 positions."""
    assert features([10, 20, 6], [1, 1, 4]) == (1, 1, 3, 4, 42, 34)
    assert features([10, 20], [1, 1]) == (1, 0, 2, 0, 32, 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_exact_times_are_recovered(device: str, trace: Callable[..., Path]) -> None:
    """On GPUs too, where the device runs one step ahead of the host."""
    found = calibrate(trace(KnownTimes(device=device), device=device))
    assert found.coefficients == pytest.approx(TRUE[device], rel=0.02)
    assert found.median_error < 1e-3
    assert abs(found.total_error) < 1e-3


def test_the_traces_of_two_servers_are_fitted_together(trace: Callable[..., Path], tmp_path: Path) -> None:
    first = trace(KnownTimes()).rename(tmp_path / "first.jsonl")
    alone, both = calibrate(first), calibrate(first, trace(KnownTimes()))
    assert both.coefficients == pytest.approx(TRUE["cpu"], rel=0.02)
    total = both.num_fitted + both.num_held_out
    assert (total, both.trace) == (2 * (alone.num_fitted + alone.num_held_out), "first.jsonl, trace.jsonl")


def test_on_a_cpu_steps_with_prompts_have_no_constant_cost(trace: Callable[..., Path]) -> None:
    found = calibrate(trace(KnownTimes(device="cuda")))
    assert found.coefficients[1] == 0.0


def test_noise_and_outliers_hardly_matter(trace: Callable[..., Path]) -> None:
    """Every twentieth step takes five times as long."""
    found = calibrate(trace(KnownTimes(0.05, 0.05)))
    exact = KnownTimes()
    for step in (([100] * 8, [1] * 8), ([0, 50, 60], [62, 1, 1])):
        expected = exact.seconds(*step, 1).device
        assert found.seconds(*step, 1).device == pytest.approx(expected, rel=0.03)
    assert 0.01 < found.median_error < 0.06
    assert found.describe().startswith(f"fitted to {found.num_fitted} steps of trace.jsonl")


def test_coefficients_are_never_negative() -> None:
    """Times fall as the second feature rises, so the best fit without negative coefficients ignores it."""
    table = np.array([[1.0, x] for x in range(1, 60)])
    found = fit(table, 2.0 - table[:, 1] / 100)
    assert found[1] == 0.0
    assert found[0] == pytest.approx(1.7, rel=0.1)


def test_a_pause_does_not_count_as_time_of_the_step_before_it(trace: Callable[..., Path]) -> None:
    """One request arrives every 100 s and takes 1 s."""
    file = trace(Times(0.25), scenario(30, 8, 4, OpenLoop(0.01)))
    assert calibrate(file).seconds([8], [1], 1).device == pytest.approx(0.25, rel=1e-4)


def test_a_record_without_a_step_does_not_count(trace: Callable[..., Path]) -> None:
    """The engine writes one when requests end after the last step."""
    file = trace(Times(0.25), scenario(30, 8, 4, OpenLoop(0.01)))
    whole, (last, *others) = calibrate(file), reversed(file.read_text().splitlines())
    lines = [last]
    for line in others:
        record = json.loads(line)
        idle = {**record, "time": record["time"] + 1.0, "plan": [], "seconds": {}}
        lines += [line] if record["running"] else [json.dumps(idle), line]
    assert len(lines) == 1 + len(others) + 29
    file.write_text("\n".join([*reversed(lines), ""]))
    assert calibrate(file) == whole


def test_an_unfinished_last_line_is_left_out_but_a_line_that_is_too_long_is_refused(
    trace: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = trace(KnownTimes(), scenario(20, 40, 20))
    whole, text = calibrate(file), file.read_text()
    file.write_text(text + '{"time": 12.5, "plan": [["a", 0')
    assert calibrate(file) == whole
    longest = max(map(len, text.splitlines(keepends=True)))
    monkeypatch.setattr(calibration, "_MAX_LINE_BYTES", longest)
    file.write_text(text + '{"time": ' + "1" * longest)
    with pytest.raises(CannotSimulateError, match="not a line of a step trace"):
        calibrate(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot read"),
        ("", "has too few usable steps"),
        ("not JSON\n", "line 1: not a line of a step trace"),
        (json.dumps({"time": 1.0}) + "\n", "line 1: not a line of a step trace"),
    ],
)
def test_a_file_that_is_not_a_step_trace_is_refused(
    content: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CannotSimulateError, match=problem):
        calibrate(file)
