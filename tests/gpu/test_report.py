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


def test_without_results_all_is_listed_as_not_run() -> None:
    page = render([])
    assert "Nothing here has been run on a GPU yet" in page
    for name in PARTS:
        assert any(line.startswith(f"| {name} |") and "not run" in line for line in page.splitlines())
    for target in TARGETS.values():
        assert f"| {target.title} | {target.words} | not run | |" in page
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


def test_of_several_measurements_the_worst_counts(tmp_path: Path) -> None:
    results = results_of("attention", tmp_path)
    for share in (0.9, 0.7, 0.95):
        results.share(f"at {share}", 1.0, "ms", share, "copy bandwidth", "decode-attention")
    page = page_of(tmp_path)
    assert "(least of 3: at 0.7) | at least 85.0 % | 70.0 % | **FAIL** |" in page


def test_a_part_that_was_killed_keeps_what_it_had(tmp_path: Path) -> None:
    results = results_of("ceilings", tmp_path)
    results.figure("ceiling: copy bandwidth", 4.3, "TB/s")
    with (tmp_path / FILE).open("a") as file:
        file.write('{"part": "ceilings", "kind": "ent')
    (run,) = read([tmp_path / FILE])
    assert not run["finished"]
    page = page_of(tmp_path)
    assert "| **cut short** |" in page
    assert "4.3 TB/s" in page


def test_a_part_that_was_ended_says_why(tmp_path: Path) -> None:
    results_of("steps", tmp_path)
    Records(tmp_path).write("steps", "stopped", why="its time was over after 170 s")
    Records(tmp_path).write("tune", "stopped", why="no time was left for it")
    page = page_of(tmp_path)
    assert "| **cut short**: its time was over after 170 s |" in page
    assert "| **cut short**: no time was left for it |" in page
    assert page.count("- device: ") == 1


def test_of_several_runs_of_a_part_the_last_counts(tmp_path: Path) -> None:
    for number in (1, 2):
        results = results_of("ceilings", tmp_path / str(number))
        results.figure("copy", float(number), "TB/s")
        results.finish()
    results_of("idle", tmp_path / "1").finish()
    page = render(read([tmp_path / "1" / FILE, tmp_path / "2" / FILE]))
    assert "| copy | 2 TB/s |" in page
    assert "| copy | 1 TB/s |" not in page
    assert "## idle" in page


def test_what_goes_wrong_is_a_failed_entry_and_the_rest_goes_on(tmp_path: Path) -> None:
    results = results_of("kernels-bf16", tmp_path)
    with results.guard("first | kernel"):
        raise RuntimeError("it broke\nin two lines")
    results.check("second kernel", True)
    assert [entry.passed for entry in results.entries] == [False, True]
    page = page_of(tmp_path)
    assert "| first \\| kernel |  |  | **FAIL** | RuntimeError: it broke in two lines |" in page


@pytest.mark.parametrize(
    ("part", "smoke", "message"), [("steps", True, "smoke run"), ("stairs", False, "no part 'stairs'")]
)
def test_what_is_no_result_is_refused(
    part: str, smoke: bool, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results_of(part, tmp_path, smoke)
    with pytest.raises(ValueError, match=message):
        page_of(tmp_path)
    assert report([str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_asked_of_a_smoke_runs_figures(tmp_path: Path) -> None:
    results = results_of("steps", tmp_path, smoke=True)
    results.share("one", 1.0, "ms", 1e-6, "its floor", "llama-1")
    assert not results.failed
    (run,) = read([tmp_path / FILE])
    assert math.isclose(run["entries"][0]["share"], 1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--part", "ceilings", "--out", str(tmp_path)]) == 2
    assert "there is no GPU here" in capsys.readouterr().err


def test_the_page_in_docs_is_what_the_report_makes() -> None:
    """Compared only while nothing has been run: later pages come from result files that are not in the repository."""
    page = (REPO_ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")
    if "Nothing here has been run on a GPU yet" in page:
        assert page == render([])
    for name in PARTS:
        assert f"| {name} |" in page
