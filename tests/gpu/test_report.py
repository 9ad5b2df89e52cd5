from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.gpu.check import PARTS, main
from tests.gpu.report import render
from tests.gpu.results import Results
from tests.gpu.targets import TARGETS
from tests.gpu.timing import Timing
from tests.support.paths import REPO_ROOT

CPU = torch.device("cpu")


def results_of(part: str, file: Path, smoke: bool = False) -> Results:
    return Results(part, CPU, smoke, file)


def test_without_results_all_is_listed_as_not_run() -> None:
    page = render([])
    assert "Nothing here has been run on a GPU yet" in page
    for name in PARTS:
        assert any(line.startswith(f"| {name} |") and "not run" in line for line in page.splitlines())
    for target in TARGETS.values():
        assert f"| {target.title} | {target.words} | not run | |" in page
        assert target.part in PARTS


def test_a_share_passes_or_fails_by_its_target(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    results = results_of("steps", file)
    timing = Timing(4.4e-3, 4.3e-3, 4.6e-3)
    results.time("one", timing, share=0.80, of="its floor", target="llama-1")
    results.time("two", timing, share=0.74, of="its floor", target="llama-32")
    results.share("idle", 1.0, "ms", 0.019, "the step", "idle-llama")
    results.share("idle", 1.0, "ms", 0.11, "the step", "idle-qwen")
    results.finish()
    assert [entry.name for entry in results.failed] == ["two", "idle"]
    page = render([json.loads(file.read_text())])
    assert f"| {TARGETS['llama-1'].title} | at least 78.0 % | 80.0 % | PASS |" in page
    assert f"| {TARGETS['llama-32'].title} | at least 75.0 % | 74.0 % | **FAIL** |" in page
    assert f"| {TARGETS['idle-llama'].title} | at most 2.0 % | 1.9 % | PASS |" in page
    assert f"| {TARGETS['idle-qwen'].title} | at most 10.0 % | 11.0 % | **FAIL** |" in page
    assert f"| {TARGETS['llama-256'].title} | at least 75.0 % | not measured | |" in page
    assert f"| {TARGETS['w6-qwen'].title} | at least 50.0 % | not run | |" in page
    assert "4.4 ms (4.3 to 4.6)" in page


def test_of_several_measurements_the_worst_counts(tmp_path: Path) -> None:
    results = results_of("attention", tmp_path / "a.json")
    for share in (0.9, 0.7, 0.95):
        results.share(f"at {share}", 1.0, "ms", share, "copy bandwidth", "decode-attention")
    page = render([json.loads((tmp_path / "a.json").read_text())])
    assert "(least of 3: at 0.7) | at least 85.0 % | 70.0 % | **FAIL** |" in page


def test_a_part_that_was_killed_keeps_what_it_had(tmp_path: Path) -> None:
    results = results_of("ceilings", tmp_path / "c.json")
    results.figure("ceiling: copy bandwidth", 4.3, "TB/s")
    run = json.loads((tmp_path / "c.json").read_text())
    assert not run["finished"]
    page = render([run])
    assert "| **cut short** |" in page
    assert "4.3 TB/s" in page


def test_what_goes_wrong_is_a_failed_entry_and_the_rest_goes_on(tmp_path: Path) -> None:
    results = results_of("kernels-bf16", tmp_path / "k.json")
    with results.guard("first | kernel"):
        raise RuntimeError("it broke\nin two lines")
    results.check("second kernel", True)
    assert [entry.passed for entry in results.entries] == [False, True]
    page = render([json.loads((tmp_path / "k.json").read_text())])
    assert "| first \\| kernel |  |  | **FAIL** | RuntimeError: it broke in two lines |" in page


@pytest.mark.parametrize(
    ("parts", "smoke", "message"),
    [
        (["steps"], True, "smoke run"),
        (["steps", "steps"], False, "two files"),
        (["stairs"], False, "no part 'stairs'"),
    ],
)
def test_what_is_no_result_is_refused(parts: list[str], smoke: bool, message: str, tmp_path: Path) -> None:
    runs = []
    for i, part in enumerate(parts):
        results_of(part, tmp_path / f"{i}.json", smoke)
        runs.append(json.loads((tmp_path / f"{i}.json").read_text()))
    with pytest.raises(ValueError, match=message):
        render(runs)


def test_nothing_is_asked_of_a_smoke_runs_figures(tmp_path: Path) -> None:
    results = results_of("steps", tmp_path / "s.json", smoke=True)
    results.share("one", 1.0, "ms", 1e-6, "its floor", "llama-1")
    assert not results.failed
    assert math.isclose(json.loads((tmp_path / "s.json").read_text())["entries"][0]["share"], 1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--part", "ceilings"]) == 2
    assert "there is no GPU here" in capsys.readouterr().err


def test_the_page_in_docs_is_what_the_report_makes() -> None:
    """As long as nothing has been run; afterwards it is the JSON files' page, which are not kept."""
    page = (REPO_ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")
    if "Nothing here has been run on a GPU yet" in page:
        assert page == render([])
    for name in PARTS:
        assert f"| {name} |" in page
