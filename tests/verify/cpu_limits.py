"""A step of SmolLM2 in fp32 comes near the limits of the processor, which are measured in the same run.

Medians of rounds, see `steps_beside_limits.py`; the limits are those of `tests/bench/limits.c`.
Operations are those of matrix products, including the whole head, though the greedy head computes most of it in int8.
A chunk's are those of all layers but the last, which computes little, and of attention. Bytes are those of the layers
in bf16 and of the head's int8 copy.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from container.explain.resolve import resolve
from container.machine import detect
from container.run import launch
from container.run.launch import RuntimePaths
from lmi_server.properties import loader
from tests.bench.limits import Limits, combined
from tests.bench.model import read_matrices
from tests.support.paths import REPO_ROOT
from tests.verify.commands import run_python
from tests.verify.lab import Lab, Report, run_alone
from tests.verify.steps_beside_limits import SHAPES

_PROPERTIES = "tests/bench/properties/fp32"
_NUM_ROUNDS = 20
_MIN_SHARES = {
    "products of 32 rows, of the FMA peak": 0.80,
    "step of 32 rows, of the FMA peak": 0.60,
    "products of a chunk of 256 tokens, of the FMA peak": 0.80,
    "chunk of 256 tokens, of the FMA peak": 0.80,
    "step of one row, of the read bandwidth": 0.75,
}
_MAX_PYTHON_MS = 1.5


def verify(lab: Lab, report: Report) -> None:
    lines = _measure(lab)
    limits = [Limits(**line["limits"]) for line in lines]
    median = combined(limits, statistics.median)
    assert median is not None
    report.figure(
        f"{median.fp32_gflops:.0f} GFLOP/s, {median.read_gbs:.1f} GB/s; medians of {_NUM_ROUNDS} rounds"
    )
    rounds = [_shares(lab.model, lines[i : i + len(SHAPES)]) for i in range(0, len(lines), len(SHAPES))]
    for (name, least), shares in zip(_MIN_SHARES.items(), zip(*rounds, strict=True), strict=True):
        low, share, high = statistics.quantiles(shares, n=4)
        report.require(share >= least, f"{name}: {share:.1%} ({low:.1%} to {high:.1%}), at least {least:.0%}")
    python = statistics.median(line["step"]["parts"]["python"] for line in lines[1 :: len(SHAPES)])
    report.require(python <= _MAX_PYTHON_MS, f"{python:.2f} ms outside native operations with 32 sequences")


def _measure(lab: Lab) -> list[dict[str, Any]]:
    environ = launch.environment()
    loaded = loader.load(REPO_ROOT / _PROPERTIES, environ, lenient=False)
    config = resolve(loaded.config, lab.model, detect(environ)).config
    paths = RuntimePaths(lab.folder)
    paths.engine_config.write_text(config.to_json(), encoding="utf-8")
    environment = launch.engine_environment(environ, config, paths)
    module = "tests.verify.steps_beside_limits"
    arguments = (str(paths.engine_config), str(lab.folder), str(_NUM_ROUNDS))
    done = run_python("-m", module, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _shares(model: Path, lines: list[dict[str, Any]]) -> tuple[float, ...]:
    """Return the shares of one round in the order of `_MIN_SHARES`."""
    one, many, chunk = (line["step"] for line in lines)
    peaks = [line["limits"]["fp32_gflops"] * 1e6 for line in lines]  # per millisecond
    bandwidth = lines[0]["limits"]["read_gbs"] * 1e6
    matrices = read_matrices(model)
    assert matrices is not None
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    layers, rows, tokens = config["num_hidden_layers"], many["shape"]["num_seqs"], chunk["shape"]["query_len"]
    products = 2 * matrices.layer_weights * rows
    head = 2 * matrices.head_weights * rows
    chunk_products = 2 * matrices.layer_weights * tokens * (layers - 1) / layers
    chunk_attention = 4 * config["hidden_size"] * tokens * (tokens + 1) / 2 * (layers - 1)
    num_bytes = 2 * matrices.layer_weights + matrices.head_weights
    return (
        products / many["parts"]["linear"] / peaks[1],
        (products + head) / many["total"] / peaks[1],
        chunk_products / chunk["parts"]["linear"] / peaks[2],
        (chunk_products + chunk_attention) / chunk["total"] / peaks[2],
        num_bytes / one["total"] / bandwidth,
    )


if __name__ == "__main__":
    run_alone(verify)
