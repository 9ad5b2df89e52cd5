"""The three configurations of AWS's post on 8 x A10G, without the machine. Nothing is fitted to the post."""

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
def test_dynamic_is_last_and_both_rolling_forms_are_equal(preset: str, falcon: Path) -> None:
    dynamic, contiguous, paged = (run(name, preset, falcon).figures for name in _POST)
    assert contiguous.num_errors == paged.num_errors == 0
    assert paged.output_tokens_per_second == pytest.approx(contiguous.output_tokens_per_second, rel=0.1)
    for rolling in (contiguous, paged):
        assert rolling.output_tokens_per_second > 5 * dynamic.output_tokens_per_second
        assert rolling.latency.p90 < dynamic.latency.p90


def test_most_of_the_dynamic_requests_are_cut_off_at_60_seconds(falcon: Path) -> None:
    """A batch of four takes some 24 s, and 32 users wait for it: the post's 58 s at the 90th percentile are of those
    that were answered."""
    censored = run("aws-post-dynamic", "aws-1", falcon).figures
    assert censored.num_timeouts > censored.num_requests / 2
    assert 40 < censored.latency.p90 < 60
    patient = run("aws-post-dynamic", "aws-1", falcon, timeout=600.0).figures
    assert patient.num_errors == 0
    assert patient.latency.p90 > 150
