"""From a fresh clone: make serve and its curl line say Paris; make test passes.

The repository is cloned into an empty folder, so only committed files are present. There is no virtual environment,
no `LMI_*` variable, and the cache is empty. `make serve` runs in the background on a free port until its output
has a curl line, which bash runs unchanged. Then the process group gets SIGTERM, and no process may be left. Finally
`make test` runs in the same clone. The reported seconds include all downloads, so they mainly reflect the network.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from container.run.local_server import free_port
from tests.support import processes
from tests.support.paths import REPO_ROOT
from tests.verify.lab import Lab, Report, run_alone

SERVE_SECONDS = 1800.0
"""Includes downloads and the one-time conversion of the model."""
TEST_SECONDS = 3600.0
STOP_SECONDS = 40.0
_CURL = re.compile(r"^\W*(curl\s.*)$", re.MULTILINE)
_OURS = ("LMI_", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "XDG_CACHE_HOME", "MAKE", "MFLAGS")


def new_user_environment(cache: Path, mark: str) -> dict[str, str]:
    """Return this environment without our virtual environment, caches and make variables, and with an empty cache.

    With `CI`, unexpected skips of tests are failures.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    if venv := os.environ.get("VIRTUAL_ENV"):
        folders = environment["PATH"].split(os.pathsep)
        environment["PATH"] = os.pathsep.join(folder for folder in folders if not folder.startswith(venv))
    return {**environment, "CI": "true", "LMI_CACHE_DIR": str(cache), processes.MARK: mark}


def wait_curl_line(log: Path, make: subprocess.Popen[bytes]) -> str | None:
    """Wait for the curl line. Returns None if `make` exits or the time limit passes first."""
    deadline = time.monotonic() + SERVE_SECONDS
    while time.monotonic() < deadline:
        if found := _CURL.search(log.read_text(errors="replace")):
            return found.group(1)
        if make.poll() is not None:
            return None
        time.sleep(0.5)
    return None


def verify_serve(clone: Path, environment: dict[str, str], report: Report) -> None:
    log = clone.parent / "serve.log"
    port = free_port()
    started = time.monotonic()
    with log.open("wb") as file:
        make = subprocess.Popen(
            ["make", "serve", f"PORT={port}"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=clone,
            env=environment,
            start_new_session=True,
        )
    try:
        line = wait_curl_line(log, make)
        seconds = time.monotonic() - started
        report.require(line is not None, f"make serve printed a curl line after {seconds:.0f} s: {line}")
        if line is None:
            report.figure("\n".join(log.read_text(errors="replace").splitlines()[-20:]))
            return
        report.require(f":{port}/" in line, f"the curl line is for port {port}")
        answer = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, env=environment, check=False, timeout=120
        )
        report.require(
            "Paris" in answer.stdout, f"response to the printed curl line: {answer.stdout.strip()[:300]}"
        )
    finally:
        os.killpg(make.pid, signal.SIGTERM)
        leftover_processes = processes.wait_exited(
            processes.marked(environment[processes.MARK]), STOP_SECONDS
        )
        processes.kill(leftover_processes)
        make.wait()
    report.require(
        not leftover_processes,
        f"after SIGTERM: processes left: {[processes.describe(one) for one in leftover_processes] or 'none'}",
    )


def verify_test(clone: Path, environment: dict[str, str], report: Report) -> None:
    log = clone.parent / "test.log"
    started = time.monotonic()
    try:
        with log.open("wb") as file:
            done = subprocess.run(
                ["make", "test"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=clone,
                env=environment,
                check=False,
                timeout=TEST_SECONDS,
            )
    finally:
        processes.kill(processes.marked(environment[processes.MARK]))
    lines = log.read_text(errors="replace").splitlines()
    report.require(
        done.returncode == 0,
        f"make test: exit code {done.returncode} after {time.monotonic() - started:.0f} s",
    )
    for line in lines[-3:] if done.returncode == 0 else lines[-40:]:
        report.figure(line[:200])


def verify(lab: Lab, report: Report) -> None:
    clone = lab.folder / "fresh" / "clone"
    clone.parent.mkdir()
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(REPO_ROOT), str(clone)], check=True)
    head = subprocess.run(
        ["git", "log", "-1", "--format=%h %s"], cwd=clone, capture_output=True, text=True, check=True
    )
    report.figure(f"clone of {head.stdout.strip()} in an empty folder; uncommitted changes are not included")
    environment = new_user_environment(clone.parent / "cache", mark=f"fresh-{os.getpid()}")
    verify_serve(clone, environment, report)
    verify_test(clone, environment, report)


if __name__ == "__main__":
    run_alone(verify)
