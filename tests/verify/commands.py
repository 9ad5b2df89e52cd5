"""Run commands of this repository as a developer does, and show their output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.paths import REPO_ROOT, child_environment
from tests.verify.lab import Report

_LMI_SECONDS = 7200.0
FULL = {"LMI_TEST_EXAMPLES": "full"}
"""Makes tests on random inputs run many new examples."""


def run_python(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python` with these arguments in the repository. Its output is printed when it has exited."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPO_ROOT,
        env=child_environment(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr, sep="\n", flush=True)
    return done


def run_tests(
    report: Report, name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run pytest with one thread, and require that all tests pass. Returns its output.

    Unexpected skips are failures, unless `environment` selects torch or another library of native kernels, for which
    some tests do not fit.
    """
    environment = environment or {}
    may_skip = environment.get("LMI_CPU_KERNELS") == "torch" or "LMI_TEST_NATIVE_LIBRARY" in environment
    done = run_python(
        *("-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments),
        environment={"CI": "" if may_skip else "true", "OMP_NUM_THREADS": "1", **environment},
    )
    report.require(done.returncode == 0, f"{name}: {last_line(done)}")
    return done.stdout


def run_lmi(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run `lmi` with `--json` in a folder, which gets its output as `stdout`. Returns its JSON.

    Raises `AssertionError` if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "result.json", folder / f"{arguments[0]}.log"
    with log.open("ab") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "container", *arguments, "--json", str(file)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=child_environment(),
            timeout=_LMI_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        tail = log.read_text(errors="replace")[-4000:]
        raise AssertionError(f"lmi {arguments[0]}: exit code {done.returncode}\n{done.stdout}\n{tail}")
    (folder / "stdout").write_text(done.stdout)
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
