"""The command line of `lmi report`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.cli import main
from tests.container.measure.report.made_up import make_benchmark


def write_results(document: object, folder: Path) -> str:
    path = folder / "results.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_the_page_is_written_next_to_the_results(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", write_results(make_benchmark(), tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "results.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_wrong_results_and_outputs_give_error_messages(tmp_path: Path) -> None:
    for document in ([1], {"rounds": []}, {**make_benchmark(), "trials": 3}):
        result = CliRunner().invoke(main, ["report", write_results(document, tmp_path)])
        assert result.exit_code == 1
        assert "not the results of this version of lmi compare" in result.output
    (tmp_path / "results.json").write_text("{", encoding="utf-8")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "results.json")])
    assert (result.exit_code, "not a JSON file" in result.output) == (1, True)
    results = write_results(make_benchmark(), tmp_path)
    result = CliRunner().invoke(main, ["report", results, "--output", "x.md"])
    assert (result.exit_code, "ending in .html" in result.output) == (2, True)
    result = CliRunner().invoke(main, ["report", results, "--output", str(tmp_path / "no/x.html")])
    assert (result.exit_code, "cannot write the report" in result.output) == (1, True)


def test_a_missing_matplotlib_is_reported_before_the_results_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page = tmp_path / "results.html"
    for document, options in (([1], ["--output", str(page)]), (make_benchmark(), [])):
        result = CliRunner().invoke(main, ["report", write_results(document, tmp_path), *options])
        assert (result.exit_code, "pip install matplotlib" in result.output) == (1, True)
        assert not page.exists()
