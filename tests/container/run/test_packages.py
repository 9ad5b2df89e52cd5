"""When the packages of a requirements.txt are reinstalled. pip is faked: installs are only recorded."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from container.progress import LogLines
from container.run import packages
from lmi_server.config import UserHandler


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Interpreters for which packages were installed."""
    pythons: list[Path] = []

    def install(python: Path, requirements: Path, wheels: Path, environ: Mapping[str, str]) -> None:
        pythons.append(python)

    monkeypatch.setattr(packages, "_create", Path.mkdir)
    monkeypatch.setattr(packages, "_install", install)
    return pythons


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def start(folder: Path) -> None:
    user = UserHandler(str(folder / "model.py"), "handle", {}, str(folder / "requirements.txt"))
    packages.interpreter(user, folder.parent / "cache", {}, LogLines(io.StringIO()))


@pytest.mark.parametrize(
    ("requirements", "changed_file"),
    [
        ("numpy==1.0", "requirements.txt"),
        ("numpy==1.0", "requirements/a.whl"),
        ("-r base.txt", "base.txt"),
        ("-rbase.txt", "base.txt"),
        ("--requirement=lists/base.txt", "lists/inner.txt"),
        ("numpy\n--constraint limits.txt  # known to work", "limits.txt"),
        ("./mine[extra]; python_version > '3'", "mine/setup.py"),
        ("mine @ file://{folder}/mine", "mine/src/mine.py"),
        ("-e mine\n-r requirements.txt", "mine/setup.py"),
        ("-r lists/local.txt", "mine/setup.py"),
        ("--no-index --find-links wheels/\na", "wheels/a.whl"),
        ("wheels/a.whl", "wheels/a.whl"),
    ],
)
def test_packages_are_reinstalled_when_a_referenced_file_changes(
    requirements: str, changed_file: str, installed: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    files = {
        "requirements.txt": requirements.format(folder=folder),
        "base.txt": "a",
        "limits.txt": "a<2",
        "lists/base.txt": "-r inner.txt",
        "lists/inner.txt": "a",
        "lists/local.txt": f"./mine\n-r ../requirements.txt --hash={'x' * 300}",
        "mine/setup.py": "",
        "mine/src/mine.py": "",
        "wheels/a.whl": "",
        "requirements/a.whl": "",
    }
    write(folder, files)
    start(folder)
    # Build files that pip writes, and an edited handler, do not trigger a reinstall.
    write(
        folder,
        {"mine/mine.egg-info/SOURCES.txt": "", "mine/build/lib/mine.py": "", "model.py": "handle = None"},
    )
    start(folder)
    assert len(installed) == 1
    write(folder, {changed_file: files[changed_file] + "\nb"})
    start(folder)
    assert len(set(installed)) == 2
