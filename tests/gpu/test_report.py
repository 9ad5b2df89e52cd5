from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.gpu.check import main
from tests.gpu.plan import PARTS
from tests.gpu.records import FILE, Records, read
from tests.gpu.report import main as report
from tests.gpu.report import render
from tests.gpu.results import Results
from tests.gpu.targets import TARGETS
from tests.gpu.timing import Timing
from tests.support.paths import REPO_ROOT

CPU = torch.device("cpu")


def results_of(part: str, folder: Path, smoke: bool = False) -> Results:
    return Results(part, CPU, smoke, Records(folder))


def page_of(folder: Path) -> str:
    return render(read([folder / FILE]))


def test_parts_and_targets_without_results_are_listed_as_not_run() -> None:
    page = render([])
    assert "No part has been run on a GPU yet" in page
    for name in PARTS:
        assert any(line.startswith(f"| {name} |") and "not run" in line for line in page.splitlines())
    for target in TARGETS.values():
        assert f"| {target.title} | {target.requirement} | not run | |" in page
        assert target.part in PARTS


def test_a_share_passes_or_fails_by_its_target(tmp_path: Path) -> None:
    results = results_of("steps", tmp_path)
    timing = Timing(4.4e-3, 4.3e-3, 4.6e-3)
    results.time("one", timing, share=0.80, of="its floor", target="llama-1")
    results.time("two", timing, share=0.74, of="its floor", target="llama-32")
    results.share("idle", 1.0, "ms", 0.019, "the step", "idle-llama")
    results.share("idle", 1.0, "ms", 0.11, "the step", "idle-qwen")
    results.finish()
    assert [entry.name for entry in results.failed] == ["two", "idle"]
    page = page_of(tmp_path)
    assert f"| {TARGETS['llama-1'].title} | at least 78.0 % | 80.0 % | PASS |" in page
    assert f"| {TARGETS['llama-32'].title} | at least 75.0 % | 74.0 % | **FAIL** |" in page
    assert f"| {TARGETS['idle-llama'].title} | at most 2.0 % | 1.9 % | PASS |" in page
    assert f"| {TARGETS['idle-qwen'].title} | at most 10.0 % | 11.0 % | **FAIL** |" in page
    assert f"| {TARGETS['llama-256'].title} | at least 75.0 % | not measured | |" in page
    assert f"| {TARGETS['w6-qwen'].title} | at least 50.0 % | not run | |" in page
    assert "4.4 ms (4.3 to 4.6)" in page


def test_the_worst_of_several_measurements_counts(tmp_path: Path) -> None:
    results = results_of("attention", tmp_path)
    for share in (0.9, 0.7, 0.95):
        results.share(f"at {share}", 1.0, "ms", share, "copy bandwidth", "decode-attention")
    page = page_of(tmp_path)
    assert "(worst of 3: at 0.7) | at least 85.0 % | 70.0 % | **FAIL** |" in page


def test_a_killed_part_keeps_its_results(tmp_path: Path) -> None:
    results = results_of("ceilings", tmp_path)
    results.figure("ceiling: copy bandwidth", 4.3, "TB/s")
    with (tmp_path / FILE).open("a") as file:
        file.write('{"part": "ceilings", "kind": "ent')
    (run,) = read([tmp_path / FILE])
    assert not run["finished"]
    page = page_of(tmp_path)
    assert "| **incomplete** |" in page
    assert "4.3 TB/s" in page


def test_a_stopped_part_reports_the_reason(tmp_path: Path) -> None:
    results_of("steps", tmp_path)
    Records(tmp_path).write("steps", "stopped", why="timed out after 170 s")
    Records(tmp_path).write("tune", "stopped", why="not started: no time left")
    page = page_of(tmp_path)
    assert "| **incomplete**: timed out after 170 s |" in page
    assert "| **incomplete**: not started: no time left |" in page
    assert page.count("- device: ") == 1


def test_a_part_that_crashes_or_hangs_at_exit_is_incomplete(tmp_path: Path) -> None:
    results = results_of("ceilings", tmp_path)
    results.figure("copy", 4.3, "TB/s")
    results.finish()
    Records(tmp_path).write("ceilings", "stopped", why="crashed with exit code -11 after 50 s")
    page = page_of(tmp_path)
    assert "| **incomplete**: crashed with exit code -11 after 50 s |" in page
    assert "| copy | 4.3 TB/s |" in page


def test_a_rerun_that_crashes_before_its_first_result_replaces_the_last_run(tmp_path: Path) -> None:
    results = results_of("ceilings", tmp_path)
    results.figure("copy", 4.3, "TB/s")
    results.finish()
    Records(tmp_path).write("ceilings", "launch")
    Records(tmp_path).write("ceilings", "stopped", why="crashed with exit code 1 after 3 s")
    page = page_of(tmp_path)
    assert "| **incomplete**: crashed with exit code 1 after 3 s |" in page
    assert "4.3 TB/s" not in page


def test_a_rerun_that_is_not_started_does_not_change_the_last_run(tmp_path: Path) -> None:
    results_of("ceilings", tmp_path).finish()
    before = page_of(tmp_path)
    Records(tmp_path).write("ceilings", "skipped", why="not started: no time left")
    assert page_of(tmp_path) == before
    Records(tmp_path).write("tune", "skipped", why="not started: no time left")
    assert "| **incomplete**: not started: no time left |" in page_of(tmp_path)


def test_the_last_run_of_a_part_counts(tmp_path: Path) -> None:
    for number in (1, 2):
        results = results_of("ceilings", tmp_path / str(number))
        results.figure("copy", float(number), "TB/s")
        results.finish()
    results_of("idle", tmp_path / "1").finish()
    page = render(read([tmp_path / "1" / FILE, tmp_path / "2" / FILE]))
    assert "| copy | 2 TB/s |" in page
    assert "| copy | 1 TB/s |" not in page
    assert "## idle" in page


def test_an_exception_becomes_a_failed_entry_and_the_part_continues(tmp_path: Path) -> None:
    results = results_of("kernels-bf16", tmp_path)
    with results.guard("first | kernel"):
        raise RuntimeError("it broke\nin two lines")
    results.check("second kernel", True)
    assert [entry.passed for entry in results.entries] == [False, True]
    page = page_of(tmp_path)
    assert "| first \\| kernel |  |  | **FAIL** | RuntimeError: it broke in two lines |" in page


@pytest.mark.parametrize(
    ("part", "smoke", "message"), [("steps", True, "smoke run"), ("stairs", False, "unknown part 'stairs'")]
)
def test_smoke_runs_and_unknown_parts_are_rejected(
    part: str, smoke: bool, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results_of(part, tmp_path, smoke)
    with pytest.raises(ValueError, match=message):
        page_of(tmp_path)
    assert report([str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_targets_do_not_apply_to_smoke_runs(tmp_path: Path) -> None:
    results = results_of("steps", tmp_path, smoke=True)
    results.share("one", 1.0, "ms", 1e-6, "its floor", "llama-1")
    assert not results.failed
    (run,) = read([tmp_path / FILE])
    assert math.isclose(run["entries"][0]["share"], 1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_part_is_refused_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--part", "ceilings", "--out", str(tmp_path)]) == 2
    assert "no GPU found" in capsys.readouterr().err


def test_the_page_in_docs_equals_the_generated_page() -> None:
    """Pages with results come from files outside the repository, so only a page without results is compared."""
    page = (REPO_ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")
    if "No part has been run on a GPU yet" in page:
        assert page == render([])
    for name in PARTS:
        assert f"| {name} |" in page
