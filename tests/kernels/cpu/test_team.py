"""The thread team: failures to start it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmi_kernels.cpu import library as installed
from tests.kernels.cpu.conftest import library_path
from tests.support.paths import child_environment

_PROGRAM = """
import resource, sys
from pathlib import Path
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.team import Team
library = Library(Path(sys.argv[1]), "")
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # each thread has a stack of some MiB
try:
    Team(library, 10000)
except RuntimeError as error:
    print(error)
print(Team(library, 2).num_threads)
"""


def test_threads_that_cannot_be_started_are_an_error() -> None:
    path = installed.library_path()
    if path is None:
        pytest.skip("native kernels are not built here")
    if library_path() != path:
        pytest.skip("a sanitizer needs more address space than the test leaves")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path)],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("the system refuses to start 10000 threads; ")
    assert second == "2"
