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

_MARK = "compare-test"
_SMALL = ("--requests", "2", "--users", "2", "--lengths", "fixed", "--output-tokens", "200", "--rounds", "1")


def start(
    folder: Path, tiny_model: Path, mark: str, *arguments: str, load: tuple[str, ...] = _SMALL
) -> subprocess.Popen[str]:
    """Compare `paged` and `contiguous`, or what `arguments` name. The report is written to `folder`."""
    for name, paged in (("paged", True), ("contiguous", False)):
        (folder / name).mkdir()
        text = properties_text(tiny_model, paged_attention=paged, kv_cache_gb=0.05)
        (folder / name / "serving.properties").write_text(text)
    command = [sys.executable, "-m", "container", "compare"]
    command += [*(arguments or ("paged", "contiguous")), *load]
    return subprocess.Popen(
        [*command, "--json", "all.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=child_environment({processes.MARK: mark, "TMPDIR": str(folder)}),
    )


def test_two_configurations_are_benchmarked_and_reported(tiny_model: Path, tmp_path: Path) -> None:
    names = ("paged", "contiguous", "--step-traces", "steps")
    run = start(tmp_path, tiny_model, f"{_MARK}-{tmp_path.name}", *names)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    data = json.loads((tmp_path / "all.json").read_text())
    assert [(one["configuration"], one["round"]) for one in data["rounds"]] == [
        ("paged", 1),
        ("contiguous", 1),
    ]
    for one in data["rounds"]:
        assert one["metrics"]["num_errors"] == 0
        assert one["metrics"]["output_tokens"] == 400
        assert one["counters"]["tokens_generated"] == 400
        assert all(timing["due"] < timing["first_token"] < timing["ended"] for timing in one["requests"])
        steps = [json.loads(line) for line in Path(one["step_trace"]).read_text().splitlines()]
        own = [step for step in steps if one["started"] <= step["time"] <= one["ended"]]
        # Not simply 2: on a busy machine one request may end before the other arrives.
        sizes = [len(step["plan"]) for step in own if step["plan"]]
        assert one["batches"]["count"] == len(sizes)
        assert one["batches"]["mean"] == pytest.approx(sum(sizes) / len(sizes))
        assert {row[0] for step in own for row in step["plan"]} == {
            arrival["id"] for step in own for arrival in step["arrivals"]
        }
        assert len({arrival["id"] for step in own for arrival in step["arrivals"]}) == 2
    first, second = (one["token_ids"] for one in data["rounds"])
    assert [len(ids) for ids in first] == [200, 200]
    assert first == second
    assert all(one["peak_memory_bytes"] > 100 << 20 for one in data["server_runs"])
    report = (tmp_path / "lmi-compare.md").read_text()
    assert "| option.paged_attention | true | false |" in report
    assert "2 of 2" in report
    assert "output tokens/s" in output
    wait_until(lambda: not processes.marked(f"{_MARK}-{tmp_path.name}"))


@pytest.mark.long
def test_live_settings_are_compared_on_one_server_within_the_time_budget(
    tiny_model: Path, tmp_path: Path
) -> None:
    grid = ("--set", "option.max_rolling_batch_size=1,2", "--time", "1s", "--max-rounds", "2")
    load = ("--requests", "4", "--users", "2", "--lengths", "fixed", "--output-tokens", "100")
    run = start(tmp_path, tiny_model, f"{_MARK}-{tmp_path.name}", "paged", *grid, load=load)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    data = json.loads((tmp_path / "all.json").read_text())
    one, two = names = [config["name"] for config in data["configurations"]]
    assert names == ["max_rolling_batch_size=1", "max_rolling_batch_size=2"]
    (server_run,) = data["server_runs"]
    assert server_run["configurations"] == names
    assert data["stopped"]
    largest = {
        name: max(result["batches"]["mean"] for result in data["rounds"] if result["configuration"] == name)
        for name in names
    }
    assert largest[one] == 1.0 < largest[two] <= 2.0
    assert all(result["counters"]["prefix_hit_tokens"] == 0 for result in data["rounds"])
    assert data["summary"][1]["same_tokens_as_first"]["num_identical"] == 4 * data["rounds"][-1]["round"]


def test_no_process_survives_a_killed_comparison(tiny_model: Path, tmp_path: Path) -> None:
    """`tests/container/measure/compare/test_run.py` covers the other signals."""
    mark = f"{_MARK}-{tmp_path.name}"
    run = start(tmp_path, tiny_model, mark)
    # The comparison itself, `lmi serve` and its child processes.
    wait_until(lambda: len(processes.marked(mark)) >= 4 or run.poll() is not None)
    seen = processes.marked(mark)
    run.kill()
    output, _ = run.communicate(timeout=600)
    assert run.returncode == -signal.SIGKILL, output
    assert not [processes.describe(process) for process in processes.wait_exited(seen, 200.0)]
    wait_until(lambda: not processes.marked(mark))
    assert not (tmp_path / "lmi-compare.md").exists()
