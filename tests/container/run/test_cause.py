"""Reported causes when a child process ends."""

from __future__ import annotations

import pytest

from container.run.cause import cause_of_death

RULE = "-" * 74
KILLED_RANK = f"""\
{RULE}
prterun noticed that process rank 1 with PID 77 on node vm exited on
signal 9 (Killed).
{RULE}
"""
FAILED_RANK = f"""\
MemoryError: cannot allocate the cache
{RULE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-12600@1,2]
   Exit code:    3
{RULE}
"""
GUNICORN_LINES = """\
[2026-01-31 12:00:00 +0000] [71] [ERROR] Exception in worker process
[2026-01-31 12:00:00 +0000] [71] [INFO] Worker exiting (pid: 71)
[2026-01-31 12:00:00 +0000] [70] [ERROR] Shutting down: Master
[2026-01-31 12:00:00 +0000] [70] [ERROR] Reason: Worker failed to boot.
"""
KILLED = "engine was killed by SIGKILL (kill -9, or the kernel when out of memory)"


@pytest.mark.parametrize(
    ("code", "output", "cause"),
    [
        (-15, "", "engine was killed by SIGTERM"),
        (-9, "", KILLED),
        (-9, "INFO ready\n", KILLED),
        (
            1,
            "Traceback (most recent call last):\n  File ...\nRuntimeError: no such tensor\n\n",
            "engine ended with exit code 1: RuntimeError: no such tensor",
        ),
        (137, KILLED_RANK, KILLED.replace("engine", "engine: rank 1", 1)),
        (3, FAILED_RANK, "engine: rank 2 ended with exit code 3: MemoryError: cannot allocate the cache"),
        (
            3,
            f"ValueError: /m/tokenizer.json: not a tokenizer\n{GUNICORN_LINES}",
            "engine ended with exit code 3: ValueError: /m/tokenizer.json: not a tokenizer",
        ),
        (
            3,
            GUNICORN_LINES,
            "engine ended with exit code 3: [2026-01-31 12:00:00 +0000] [70] [ERROR] Reason: Worker failed to boot.",
        ),
    ],
    ids=[
        "signal",
        "SIGKILL",
        "unrelated output",
        "error",
        "killed rank",
        "error of a rank",
        "error of the app",
        "log of the web server only",
    ],
)
def test_the_cause(code: int, output: str, cause: str) -> None:
    assert cause_of_death("engine", code, output.splitlines()) == cause
