"""Peak rates of this machine, measured by `limits.c`, and the share of them that a run used."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.measure.bench.workload import BenchRequest
from tests.bench.contender import Facts
from tests.bench.model import Matrices

_SOURCE = Path(__file__).with_name("limits.c")
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-pthread")


class NoLimits(Exception):
    """The limits cannot be measured on this machine. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Peak rates of this machine, with one thread per core."""

    threads: int
    fp32_gflops: float
    int8_gops: float | None
    """Rate of int8 dot-product instructions, without matrix units (AMX). None if the processor has none."""
    read_gbs: float


def combined(measured: Iterable[Limits | None], combine: Callable[[list[float]], float]) -> Limits | None:
    """Combine each rate of several measurements, such as by `max`. None if nothing was measured."""
    known = [limits for limits in measured if limits is not None]
    if not known:
        return None
    int8 = [limits.int8_gops for limits in known if limits.int8_gops is not None]
    return Limits(
        known[0].threads,
        combine([limits.fp32_gflops for limits in known]),
        combine(int8) if int8 else None,
        combine([limits.read_gbs for limits in known]),
    )


def measure(folder: Path, tries: int = 5) -> Limits:
    """Measure the limits, the best of some tries, for 0.3 seconds per try on all cores.

    The program is compiled into `folder`. Raises: NoLimits.
    """
    threads = len(os.sched_getaffinity(0))
    command = [str(compiled(folder)), str(threads), str(tries)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLimits(f"{_SOURCE.name} exited with code {done.returncode}: {done.stderr.strip()}")
    return Limits(**json.loads(done.stdout))


def compiled(folder: Path) -> Path:
    """Compile `limits.c` into `folder`, once for each compiler. Raises: NoLimits."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        raise NoLimits("a C compiler is needed (Debian: build-essential)")
    digest = hashlib.sha256(_SOURCE.read_bytes() + " ".join((compiler, *_FLAGS)).encode()).hexdigest()[:16]
    program = folder / f"limits-{digest}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(".partial")
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(partial)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoLimits(f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}")
        partial.rename(program)
    return program


def arithmetic_share(
    matrices: Matrices, requests: Sequence[BenchRequest], wall_seconds: float, facts: Facts, limits: Limits
) -> float:
    """Return the mean share of the peak that a run's matrix products used, prompts included. NaN if unknown."""
    peak = limits.int8_gops if facts.arithmetic == "int8" else limits.fp32_gflops
    if not peak:
        return math.nan
    # The last output token goes through no layer. The head is computed for each output token.
    rows = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    heads = sum(request.output_tokens for request in requests)
    operations = 2 * (matrices.layer_weights * rows + matrices.head_weights * heads)
    return operations / wall_seconds / 1e9 / peak


def read_share(matrices: Matrices, tokens_per_second: float, facts: Facts, limits: Limits) -> float:
    """Return the share of the read bandwidth that one stream uses for weights. Each token reads all weights once."""
    return tokens_per_second * matrices.weights * facts.weight_bytes / 1e9 / limits.read_gbs
