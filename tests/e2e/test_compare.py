"""`lmi compare` from the command line: two real servers in turn, a report, and no processes left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.paths import child_environment
from tests.support.server import properties_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

_LOAD = ("--requests", "2", "--users", "2", "--lengths", "fixed", "--output-tokens", "200", "--rounds", "1")
_NAMES = [
    f"paged_attention={paged} max_rolling_batch_size={size}" for paged in ("true", "false") for size in (1, 2)
]


def start(folder: Path, tiny_model: Path, *options: str) -> subprocess.Popen[str]:
    """Compare paged and contiguous attention, each with two batch sizes. The report is written to `folder`."""
    (folder / "serving.properties").write_text(properties_text(tiny_model, kv_cache_gb=0.05))
    grid = ("--set", "option.paged_attention=true,false", "--set", "option.max_rolling_batch_size=1,2")
    return subprocess.Popen(
        [sys.executable, "-m", "container", "compare", "serving.properties", *grid, *_LOAD, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=child_environment({processes.MARK: folder.name, "TMPDIR": str(folder)}),
    )


def test_configurations_are_benchmarked_and_reported(tiny_model: Path, tmp_path: Path) -> None:
    """Batch sizes are live settings, so there are only two servers."""
    run = start(tmp_path, tiny_model, "--step-traces", "steps", "--json", "all.json")
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    data = json.loads((tmp_path / "all.json").read_text())
    assert [stay["configurations"] for stay in data["stays"]] == [_NAMES[:2], _NAMES[2:]]
    assert [(one["configuration"], one["round"]) for one in data["rounds"]] == [(name, 1) for name in _NAMES]
    for one in data["rounds"]:
        assert one["figures"]["num_errors"] == 0
        assert one["figures"]["output_tokens"] == 400
        size = one["batches"]["mean"]
        assert size == 1.0 if one["configuration"].endswith("=1") else 1.0 < size <= 2.0
        assert one["counters"]["tokens_generated"] == 400
        assert one["counters"]["prefix_hit_tokens"] == 0
        assert all(timing["due"] < timing["first_token"] < timing["ended"] for timing in one["requests"])
        steps = [json.loads(line) for line in Path(one["step_trace"]).read_text().splitlines()]
        own = [step for step in steps if one["began"] <= step["time"] <= one["ended"]]
        assert {row[0] for step in own for row in step["plan"]} == {
            arrival["id"] for step in own for arrival in step["arrivals"]
        }
        assert len({arrival["id"] for step in own for arrival in step["arrivals"]}) == 2
    first, *others = (one["token_ids"] for one in data["rounds"])
    assert [len(ids) for ids in first] == [200, 200]
    assert others == [first] * 3
    assert data["summary"][1]["tokens_of_first"]["num_identical"] == 2
    assert all(stay["peak_memory_bytes"] > 100 << 20 for stay in data["stays"])
    report = (tmp_path / "lmi-compare.md").read_text()
    assert "| option.paged_attention | true | true | false | false |" in report
    assert "2 of 2" in report
    assert "output tokens/s" in output
    wait_until(lambda: not processes.marked(tmp_path.name))


def test_no_process_survives_a_killed_comparison(tiny_model: Path, tmp_path: Path) -> None:
    """`tests/container/measure/compare/test_run.py` covers the other signals."""
    mark = tmp_path.name
    run = start(tmp_path, tiny_model)
    # The comparison itself, `lmi serve` and its child processes.
    wait_until(lambda: len(processes.marked(mark)) >= 4 or run.poll() is not None)
    seen = processes.marked(mark)
    run.kill()
    output, _ = run.communicate(timeout=600)
    assert run.returncode == -signal.SIGKILL, output
    assert not [processes.describe(process) for process in processes.wait_exited(seen, 200.0)]
    wait_until(lambda: not processes.marked(mark))
    assert not (tmp_path / "lmi-compare.md").exists()
