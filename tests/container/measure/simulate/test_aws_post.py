"""The three configurations of AWS's post, simulated on 8 x A10G. Nothing is fitted to the post."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.measure.bench.scenario import PRESETS
from container.measure.simulate.roofline import Roofline
from container.measure.simulate.server import resolve_server
from container.measure.simulate.simulation import Simulation, simulate
from lmi_server.properties import loader
from tests.container.measure.simulate.made_up import EIGHT
from tests.support.paths import REPO_ROOT

_POST = ("aws-post-dynamic", "aws-post-rolling", "aws-post-rolling-paged")


def run(name: str, preset: str, model: Path, timeout: float = 60.0) -> Simulation:
    config = loader.load(REPO_ROOT / "properties_examples" / name, {}).config
    server = resolve_server(config, model, EIGHT)
    return simulate(server, Roofline(server, EIGHT), PRESETS[preset], timeout=timeout)


@pytest.mark.parametrize("preset", ["aws-1", "aws-2"])
def test_dynamic_is_slowest_and_both_rolling_configurations_are_equally_fast(
    preset: str, falcon: Path
) -> None:
    dynamic, contiguous, paged = (run(name, preset, falcon).metrics for name in _POST)
    assert contiguous.num_errors == paged.num_errors == 0
    assert paged.output_tokens_per_second == pytest.approx(contiguous.output_tokens_per_second, rel=0.1)
    for rolling in (contiguous, paged):
        assert rolling.output_tokens_per_second > 5 * dynamic.output_tokens_per_second
        assert rolling.latency.p90 < dynamic.latency.p90


def test_most_requests_of_dynamic_batching_time_out_after_60_seconds(falcon: Path) -> None:
    """A batch of four takes some 24 s, and there are 32 users. The post's p90 of 58 s ignores timed-out requests."""
    with_timeout = run("aws-post-dynamic", "aws-1", falcon).metrics
    assert with_timeout.num_timeouts > with_timeout.num_requests / 2
    assert 40 < with_timeout.latency.p90 < 60
    without_timeout = run("aws-post-dynamic", "aws-1", falcon, timeout=600.0).metrics
    assert without_timeout.num_errors == 0
    assert without_timeout.latency.p90 > 150
