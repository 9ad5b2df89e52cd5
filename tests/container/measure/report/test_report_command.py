"""`lmi report`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.cli import main
from tests.container.measure.report.made_up import make_benchmark


def write(document: object, folder: Path) -> str:
    path = folder / "results.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_a_page_is_written_beside_the_results(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", write(make_benchmark(), tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "results.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_cannot_be_reported_gives_a_sentence(tmp_path: Path) -> None:
    for document in ([1], {"rounds": []}, {**make_benchmark(), "trials": 3}):
        done = CliRunner().invoke(main, ["report", write(document, tmp_path)])
        assert (done.exit_code, "not the results of this version of lmi compare" in done.output) == (1, True)
    (tmp_path / "results.json").write_text("{", encoding="utf-8")
    done = CliRunner().invoke(main, ["report", str(tmp_path / "results.json")])
    assert (done.exit_code, "not a JSON file" in done.output) == (1, True)
    results = write(make_benchmark(), tmp_path)
    done = CliRunner().invoke(main, ["report", results, "--out", "x.md"])
    assert (done.exit_code, "ending in .html" in done.output) == (2, True)
    done = CliRunner().invoke(main, ["report", results, "--out", str(tmp_path / "no/x.html")])
    assert (done.exit_code, "cannot write the report" in done.output) == (1, True)


def test_a_missing_matplotlib_is_named_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["report", write([1], tmp_path), "--out", str(tmp_path / "a.html")])
    assert (done.exit_code, "pip install matplotlib" in done.output) == (1, True)
