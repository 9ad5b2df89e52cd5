"""A model of 2.2 GB that is not in the page cache loads at 80 % of the rate of `cat` beside a touch of as much memory.

Weights need as much memory again as the file. In a virtual machine the first touch of memory may have to wait for the
host, which can take longer than the disk. So a loader is compared with `cat` of the file while a thread touches as much
new memory, in huge pages. Both run alternately, each in a new process, after the file has been dropped from the page
cache.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from tests.support.large_llama import write_llama
from tests.support.paths import REPO_ROOT, child_environment
from tests.verify.lab import Lab, Report, run_alone

_NUM_ROUNDS = 11
_MIN_SHARE = 0.8
_PROGRAM = """
import mmap, subprocess, sys, time
from dataclasses import replace
from functools import partial
from pathlib import Path
import torch
import lmi_kernels
from engines.models.architectures import read_config
from engines.models.decoder import build_decoder
from engines.models.parts import Parts
from engines.models.weights import WeightReader
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import shared_team

file = Path(sys.argv[1])
config = read_config(file.parent)
shared_team()
start = time.perf_counter()
if sys.argv[2] == "cat":
    with mmap.mmap(-1, file.stat().st_size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        cat = subprocess.Popen(["cat", file], stdout=subprocess.DEVNULL)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        cat.wait()
else:
    pack = partial(lmi_kernels.pack, storage=None)
    weights = WeightReader(file.parent, torch.bfloat16, None, torch.device("cpu"), pack)
    parts = Parts(config, weights, Communicator(), Stopwatch(lambda: 0.0))
    weights.prefetch(lambda source: build_decoder(replace(parts, weights=source)))
    model = build_decoder(parts)
print(time.perf_counter() - start)
"""


def verify(lab: Lab, report: Report) -> None:
    folder = lab.folder / "cold-loading"
    file = _write_model(folder)
    shares = []
    for number in range(_NUM_ROUNDS):
        order = ("cat", "load") if number % 2 else ("load", "cat")
        seconds = {what: _seconds(file, what) for what in order}
        shares.append(seconds["cat"] / seconds["load"])
        report.figure(f"round {number + 1}: {shares[-1]:.2f} of the rate of cat and touch")
    share = statistics.median(shares)
    report.require(
        share >= _MIN_SHARE,
        f"{share:.2f} of the rate of cat and touch ({min(shares):.2f} to {max(shares):.2f}), at least {_MIN_SHARE:g}",
    )
    file.unlink()


def _write_model(folder: Path) -> Path:
    """Write a model of 1.1e9 parameters, as to the disk."""
    write_llama(
        folder,
        lambda shape: torch.rand(shape).sub_(0.5),
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    os.sync()
    return folder / "model.safetensors"


def _seconds(file: Path, what: str) -> float:
    """Return the seconds of `cat` or of loading, with nothing in the page cache."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(file), what],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=REPO_ROOT,
        env=child_environment({}),
    )
    return float(result.stdout)


if __name__ == "__main__":
    run_alone(verify)
