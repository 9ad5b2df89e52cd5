"""`lmi bench` against the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.measure.bench.bench_command import bench
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def test_counts_and_figures_of_a_real_run(paged_server: Server, bundled_model: Path) -> None:
    """The dialect of LMI is that of the documentation, which tests/docs runs."""
    size = [
        "--users",
        "3",
        "--requests",
        "6",
        "--input-tokens",
        "24",
        "--output-tokens",
        "8",
        "--warm-up",
        "1",
    ]
    command = [
        paged_server.base_url,
        "--dialect",
        "openai",
        *size,
        "--tokenizer",
        str(bundled_model),
        "--json",
        "-",
    ]
    done = CliRunner().invoke(bench, command)
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    # With a wrong count of tokens, in or out, a request would have failed.
    assert (figures["num_errors"], figures["output_tokens"]) == (0, 6 * 8)
    assert 0 < figures["ttft"]["p50"] < figures["latency"]["p50"] <= figures["wall_seconds"]
    assert 0 < figures["gap"]["p50"] < figures["latency"]["p50"]
