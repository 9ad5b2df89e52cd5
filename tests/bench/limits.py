"""Rates that this machine reaches at most, measured by `limits.c`, and what share of them a run used."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from container.measure.bench.workload import BenchRequest
from tests.bench.contender import Facts
from tests.bench.model import Matrices

_SOURCE = Path(__file__).with_name("limits.c")
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-pthread")


class NoLimits(Exception):
    """They cannot be measured here. The text says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """On as many threads as there are cores."""

    threads: int
    fp32_gflops: float
    int8_gops: float | None
    """By vector instructions for int8 dot products; matrix units (AMX) are not used. None where there are none."""
    read_gbs: float

    def best(self, other: Limits) -> Limits:
        """Of two measurements: a limit is the most that was ever seen."""
        int8 = [rate for rate in (self.int8_gops, other.int8_gops) if rate is not None]
        return Limits(
            self.threads,
            max(self.fp32_gflops, other.fp32_gflops),
            max(int8) if int8 else None,
            max(self.read_gbs, other.read_gbs),
        )


def measure(folder: Path) -> Limits:
    """Takes some seconds on all cores. folder: where the compiled program is kept. Raises: NoLimits."""
    threads = len(os.sched_getaffinity(0))
    done = subprocess.run([str(compiled(folder)), str(threads)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLimits(f"{_SOURCE.name} ended with exit code {done.returncode}: {done.stderr.strip()}")
    return Limits(**json.loads(done.stdout))


def compiled(folder: Path) -> Path:
    """`limits.c` as a program in `folder`, made once for each compiler. Raises: NoLimits."""
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
    """Share of the peak that the matrix products of a run had on average, prompts and all. NaN where it is unknown."""
    peak = limits.int8_gops if facts.arithmetic == "int8" else limits.fp32_gflops
    if not peak:
        return math.nan
    # The last token of an answer goes through no layer; the head is computed for each token of an answer.
    rows = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    heads = sum(request.output_tokens for request in requests)
    operations = 2 * (matrices.layer_weights * rows + matrices.head_weights * heads)
    return operations / wall_seconds / 1e9 / peak


def read_share(matrices: Matrices, tokens_per_second: float, facts: Facts, limits: Limits) -> float:
    """Share of the read bandwidth that one stream uses for weights; each token reads all of them once."""
    return tokens_per_second * matrices.weights * facts.weight_bytes / 1e9 / limits.read_gbs
