"""The start of an engine's process, with a made-up module instead of an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support import processes
from tests.support.paths import child_environment

_START = [sys.executable, "-m", "engines.start", "made_up"]
_PARENT = "import subprocess, sys, time\nsubprocess.Popen(sys.argv[1:])\ntime.sleep(600)\n"
_LOADING = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
_SIGTERM = """
import multiprocessing, os, signal, subprocess, time

def main():
    os.kill(os.getpid(), signal.SIGTERM)
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    fork.terminate()
    fork.join()
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    print("ended by", -fork.exitcode, -program.wait())
    signal.signal(signal.SIGTERM, lambda number, frame: print("own handler"))
    os.kill(os.getpid(), signal.SIGTERM)
    return 3
"""


def environment_with(module: str, folder: Path) -> dict[str, str]:
    """Return the environment in which `made_up` is a module with this text."""
    (folder / "made_up.py").write_text(module)
    environment = child_environment()
    return {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(folder)])}


def test_a_process_whose_parent_is_killed_during_the_imports_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PARENT, *_START]
    environment = environment_with(_LOADING, tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        left = processes.wait_exited([process], 60)
        processes.kill(left)
    assert left == []


def test_sigterm_ends_only_the_forks_and_programs_of_an_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        _START,
        capture_output=True,
        text=True,
        env=environment_with(_SIGTERM, tmp_path),
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (3, "ended by 15 15\nown handler\n"), done.stderr
