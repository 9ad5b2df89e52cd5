"""The output of child processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from container.run.processes import Child
from tests.support.waiting import wait_until

PROGRESS = "import sys, time; sys.stderr.write('x\\r' * (1 << 19)); sys.stderr.flush(); time.sleep(600)"


def test_stderr_without_newlines_is_copied_while_the_child_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as stream:
        child = Child.start("child", [sys.executable, "-c", PROGRESS], os.environ, log=stream)
        try:
            wait_until(lambda: log.stat().st_size >= 900 << 10)
            assert child.poll() is None
        finally:
            child.kill_all()
            child.last_lines()  # waits until everything is copied
