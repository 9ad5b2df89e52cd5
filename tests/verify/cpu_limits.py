"""A step of SmolLM2 in fp32 comes near the limits of the processor, which are measured in the same run.

In each round, `lmi profile` runs between two measurements of the limits (`tests/bench/limits.c`), whose mean counts.
Operations are those of matrix products, including the whole head, though the greedy head computes most of it in int8.
A chunk's are those of all layers but the last, which computes little, and of attention. Bytes are those of the layers
in bf16 and of the head's int8 copy.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from tests.bench.limits import Limits, combined, measure
from tests.bench.model import read_matrices
from tests.verify.commands import run_python
from tests.verify.lab import Lab, Report, run_alone

_PROPERTIES = "tests/bench/properties/fp32"
_NUM_ROUNDS = 5
_MIN_SHARES = {
    "products of 32 rows, of the FMA peak": 0.80,
    "step of 32 rows, of the FMA peak": 0.60,
    "products of a chunk of 256 tokens, of the FMA peak": 0.80,
    "chunk of 256 tokens, of the FMA peak": 0.80,
    "step of one row, of the read bandwidth": 0.75,
}
_MAX_PYTHON_MS = 1.5


def verify(lab: Lab, report: Report) -> None:
    shares: dict[str, list[float]] = {name: [] for name in _MIN_SHARES}
    python = []
    before = measure(lab.folder)
    for _ in range(_NUM_ROUNDS):
        steps = _profile(lab.folder / "profile.json")
        after = measure(lab.folder)
        limits = combined((before, after), statistics.mean)
        before = after
        assert limits is not None
        report.figure(f"{limits.fp32_gflops:.0f} GFLOP/s, {limits.read_gbs:.1f} GB/s")
        for name, share in zip(_MIN_SHARES, _shares(lab.model, steps, limits), strict=True):
            shares[name].append(share)
        python.append(steps[1]["parts"]["python"])
    for name, least in _MIN_SHARES.items():
        share = statistics.median(shares[name])
        spread = f"{min(shares[name]):.0%} to {max(shares[name]):.0%}"
        report.require(share >= least, f"{name}: {share:.1%} ({spread}), at least {least:.0%}")
    median = statistics.median(python)
    report.require(median <= _MAX_PYTHON_MS, f"{median:.2f} ms outside native operations with 32 sequences")


def _profile(path: Path) -> list[dict]:
    """Return the steps of `lmi profile`: one sequence, 32 sequences, a chunk. Times are in milliseconds."""
    done = run_python("-m", "container", "profile", _PROPERTIES, "--json", str(path))
    assert done.returncode == 0, done.stderr
    steps: list[dict] = json.loads(path.read_text(encoding="utf-8"))["steps"]
    return steps


def _shares(model: Path, steps: list[dict], limits: Limits) -> tuple[float, ...]:
    """Return the shares in the order of `_MIN_SHARES`."""
    one, many, chunk = steps
    matrices = read_matrices(model)
    assert matrices is not None
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    layers, rows, tokens = config["num_hidden_layers"], many["shape"]["num_seqs"], chunk["shape"]["query_len"]
    products = 2 * matrices.layer_weights * rows
    head = 2 * matrices.head_weights * rows
    chunk_products = 2 * matrices.layer_weights * tokens * (layers - 1) / layers
    chunk_attention = 4 * config["hidden_size"] * tokens * (tokens + 1) / 2 * (layers - 1)
    num_bytes = 2 * matrices.layer_weights + matrices.head_weights
    peak, bandwidth = limits.fp32_gflops * 1e6, limits.read_gbs * 1e6  # per millisecond
    return (
        products / many["parts"]["linear"] / peak,
        (products + head) / many["total"] / peak,
        chunk_products / chunk["parts"]["linear"] / peak,
        (chunk_products + chunk_attention) / chunk["total"] / peak,
        num_bytes / one["total"] / bandwidth,
    )


if __name__ == "__main__":
    run_alone(verify)
