"""Configurations, and refusals, of the text of a serving.properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.properties.examination import Examination, Loaded
from lmi_server.properties.loader import examine, load
from lmi_server.properties.problems import Problem, PropertiesError


def load_text(
    folder: Path, text: str, environ: dict[str, str] | None = None, lenient: bool = False
) -> Loaded:
    (folder / "serving.properties").write_text(text, encoding="iso-8859-1")
    return load(folder, environ or {}, lenient)


def examine_text(folder: Path, text: str, environ: dict[str, str] | None = None) -> Examination:
    """Examine a serving.properties with this text."""
    (folder / "serving.properties").write_text(text, encoding="iso-8859-1")
    return examine(folder, environ or {})


def refusal(folder: Path, text: str, environ: dict[str, str] | None = None) -> PropertiesError:
    """Return the error, which has a line for each problem."""
    with pytest.raises(PropertiesError) as caught:
        load_text(folder, text, environ)
    assert str(caught.value).count("\n") == len(caught.value.problems) - 1
    return caught.value


def single_problem(folder: Path, text: str, environ: dict[str, str] | None = None) -> Problem:
    [problem] = refusal(folder, text, environ).problems
    return problem
