"""Data files of the web process."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_package_includes_all_data_files() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = ROOT / "lmi_server"
    installed = {path for pattern in settings["package-data"]["lmi_server"] for path in package.glob(pattern)}
    data_files = {path for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert data_files
    assert data_files <= installed
