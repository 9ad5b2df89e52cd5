"""Memory of a loaded model, and its peak while loading: at most one tensor more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmi_kernels.cpu import shared_team
from tests.support.large_llama import write_llama
from tests.support.paths import REPO_ROOT, child_environment

_HIDDEN, _WIDTH = 1024, 4096
_SLACK = 24 << 20
"""Tolerance for the memory of threads, allocator and interpreter, and for code that runs for the first time."""
_READ_SLACK = 4 << 20
"""Tolerance for other memory that is freed before the end."""

_PROGRAM = """
import re, sys
from dataclasses import replace
from pathlib import Path
import torch
from engines.models.architectures import read_config
from engines.models.decoder import build_decoder as build
from engines.models.parts import Parts
from engines.models.weights import WeightReader
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch

def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder = Path(sys.argv[1])
config = read_config(folder)
weights = WeightReader(folder, torch.bfloat16, None, torch.device("cpu"))
parts = Parts(config, weights, Communicator(), Stopwatch(lambda: 0.0))
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
weights.prefetch(lambda source: build(replace(parts, weights=source)))
model = build(parts)
peak, end = (status(name) - before for name in ("VmHWM", "VmRSS"))
print(weights.owned_bytes, config.logit_bounds_bytes(), peak, end, weights.bytes_read)
"""


@pytest.mark.long
def test_peak_memory_is_at_most_the_loaded_model_and_one_tensor(tmp_path: Path) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are not built")
    tensors = write_llama(
        tmp_path,
        torch.ones,
        hidden_size=_HIDDEN,
        intermediate_size=_WIDTH,
        num_hidden_layers=6,
        num_attention_heads=16,
        vocab_size=8192,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO_ROOT,
        env=child_environment({"OMP_NUM_THREADS": "1"}),
    )
    if "clear_refs" in result.stderr:
        pytest.skip("the kernel does not reset this process's peak")
    assert result.returncode == 0, result.stderr
    owned, bounds, peak, end, read = map(int, result.stdout.split())
    assert owned == read == sum(2 * tensor.numel() for tensor in tensors.values())
    one_tensor = 2 * 2 * _WIDTH * _HIDDEN
    assert owned / 2 < end <= owned + bounds + _SLACK
    # The head's int8 copy, `bounds`, is quantized before it is packed.
    assert peak <= end + one_tensor + bounds + _READ_SLACK
