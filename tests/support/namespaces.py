"""Run programs in separate namespaces with `unshare`. Tests are skipped where that is not permitted."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

NEW_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""The program is process 1 of its own process tree, as in a container."""
NEW_MOUNTS = ("unshare", "--mount")


def require(prefix: tuple[str, ...]) -> None:
    """Skip the test where such a namespace cannot be created."""
    if reason := _refusal(prefix):
        pytest.skip(f"{' '.join(prefix)} is not permitted here: {reason}")


@functools.cache
def _refusal(prefix: tuple[str, ...]) -> str:
    if shutil.which(prefix[0]) is None:
        return "there is no such program"
    done = subprocess.run([*prefix, "true"], capture_output=True, text=True, timeout=600, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
