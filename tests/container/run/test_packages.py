"""When the packages of a requirements.txt are reinstalled. pip is faked: installs are only recorded."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from container.explain.resolve import CannotServe
from container.progress import LogLines
from container.run import packages
from container.run.processes import session_members
from container.run.stop_signals import StopRequested, StopSignals
from lmi_server.config import UserHandler
from tests.support.paths import child_environment
from tests.support.waiting import wait_until


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


def start(folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Install the requirements of a handler. environ: environment of pip."""
    user = UserHandler(str(folder / "model.py"), "handle", {}, str(folder / "requirements.txt"))
    packages.interpreter(user, folder.parent / "cache", environ or {}, LogLines(io.StringIO()))


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


@pytest.mark.parametrize(
    "requirements",
    [
        "numpy  # CPU .. GPU builds",
        "# .. or ../other\nnumpy",
        "numpy\n\t# see ../other",
        "numpy\n--find-links ..",
    ],
    ids=["after a requirement", "before a requirement", "after a tab", "a folder around this one"],
)
def test_folders_in_comments_and_around_the_handler_are_not_searched(
    requirements: str, installed: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    write(folder, {"requirements.txt": requirements, "../other/a.py": "a"})
    start(folder)
    write(folder, {"../other/a.py": "changed"})
    start(folder)
    assert len(installed) == 1


@pytest.mark.parametrize(("requirements", "changed_file"), [(".", "setup.py"), ("..", "../src/mine.py")])
def test_a_package_may_be_around_the_handler(
    requirements: str, changed_file: str, installed: list[Path], tmp_path: Path
) -> None:
    folder, cache = tmp_path / "package" / "folder", tmp_path / "cache"
    user = UserHandler(str(folder / "model.py"), "handle", {}, str(folder / "requirements.txt"))
    files = {"requirements.txt": requirements, "setup.py": "", "../setup.py": "", "../src/mine.py": ""}
    for changes in (files, {}, {changed_file: "changed"}):
        write(folder, changes)
        packages.interpreter(user, cache, {}, LogLines(io.StringIO()))
    assert len(set(installed)) == 2


def test_files_may_vanish_while_they_are_listed(
    installed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    write(folder, {"requirements.txt": "./mine", "mine/a.py": "", "mine/gone.py": ""})
    real_stat = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = real_stat(path, follow_symlinks=follow_symlinks)
        if path.name == "gone.py":
            path.unlink()
        return status

    monkeypatch.setattr(Path, "stat", stat)
    start(folder)
    assert len(installed) == 1


def test_a_file_that_cannot_be_read_is_named(
    installed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    write(folder, {"requirements.txt": "numpy"})

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CannotServe, match=r"Permission denied: .*requirements\.txt"):
        start(folder)


PIP = """
import os, subprocess, sys
build = subprocess.Popen(["sleep", "600"])
with open("prefix", "w") as file: file.write(sys.prefix)
with open("session", "w") as file: file.write(f"{os.getsid(0)}\\n")
build.wait()
"""
"""A pip that builds a package in a process of its own."""


def test_a_stop_signal_during_an_installation_also_ends_the_builds(tmp_path: Path) -> None:
    folder, session = tmp_path / "folder", tmp_path / "folder" / "session"
    write(folder, {"requirements.txt": "numpy", "pip.py": PIP, "session": ""})

    def stop() -> None:
        wait_until(lambda: session.read_text().endswith("\n"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with StopSignals(), pytest.raises(StopRequested):
        start(folder, {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]})
    stopper.join()
    members = session_members(int(session.read_text()))
    assert os.getpid() not in members
    wait_until(lambda: not session_members(int(session.read_text())))


SERVER = """
import os, sys
from pathlib import Path
from tests.container.run.test_packages import start
start(Path(sys.argv[1]), os.environ)
"""


def test_the_process_that_installs_ends_with_a_killed_server(tmp_path: Path) -> None:
    folder, session = tmp_path / "folder", tmp_path / "folder" / "session"
    write(folder, {"requirements.txt": "numpy", "pip.py": PIP, "session": ""})
    environ = child_environment()
    environ["PYTHONPATH"] += f"{os.pathsep}{folder}"
    with subprocess.Popen([sys.executable, "-c", SERVER, str(folder)], env=environ) as server:
        wait_until(lambda: session.read_text().endswith("\n"))
        server.kill()
    pip = int(session.read_text())
    try:
        wait_until(lambda: pip not in session_members(pip))
    finally:
        for process in session_members(pip):
            os.kill(process, signal.SIGKILL)
    assert (folder / "prefix").read_text().startswith(str(tmp_path / "cache" / "handlers"))
