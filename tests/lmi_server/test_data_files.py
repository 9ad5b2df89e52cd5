"""The web process has its data files."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_an_installation_has_the_tables() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "lmi_server"
    installed = {path for pattern in settings["package-data"]["lmi_server"] for path in package.glob(pattern)}
    tables = {path for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert tables
    assert tables <= installed
