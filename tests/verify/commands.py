"""Commands of this repository, run as a developer runs them, their output shown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from tests.support.paths import REPO_ROOT, child_environment


def run_python(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python` with these arguments, in the repository; what it printed is printed when it has ended."""
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


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
