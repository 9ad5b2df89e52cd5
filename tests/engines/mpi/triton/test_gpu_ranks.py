"""The GPU path on two ranks, in the Triton interpreter. Both ranks feed back the token that rank 0 selects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from container.run.launch import mpirun_command
from container.run.mpi import find_mpirun
from lmi_kernels._triton import INTERPRETED
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import VOCAB_SIZE, load_oracle, oracle_logits, save_model

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check"),
]

_COUNT = 3


def test_two_ranks_generate_the_tokens_of_transformers(tmp_path: Path) -> None:
    """The shape of Falcon-7B: heads that do not divide evenly, and a single KV head on both ranks."""
    shape = {"hidden_size": 80, "num_attention_heads": 5, "num_hidden_layers": 1, "ffn_hidden_size": 40}
    save_model(tmp_path / "model", "falcon-7b", **shape)
    prompt = integers(fresh_generator(), 0, VOCAB_SIZE, 6)
    script = Path(__file__).with_name("generating_ranks.py")
    command = [sys.executable, str(script), str(tmp_path), json.dumps(prompt), str(_COUNT)]
    done = subprocess.run(
        mpirun_command(find_mpirun(os.environ), 2, os.geteuid() == 0, command),
        env=child_environment({"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}),
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    oracle, tokens = load_oracle(tmp_path / "model", "fp32"), list(prompt)
    for _ in range(_COUNT):
        tokens.append(int(oracle_logits(oracle, tokens)[-1].argmax()))
    assert json.loads((tmp_path / "0.json").read_text()) == tokens[len(prompt) :]
    assert json.loads((tmp_path / "1.json").read_text()) == []
