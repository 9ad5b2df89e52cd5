"""Run a command in a session of its own, so that nothing that it started outlives an interruption."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_in_own_session(
    command: Sequence[str | Path],
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Return the exit code, and stdout and stderr together as `stdout`.

    timeout: seconds. On any exception, also a stop signal, the command and the processes that it started are killed.
    Raises: TimeoutExpired; OSError.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)
