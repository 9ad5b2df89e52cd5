"""Architectures without a file of our own: logits and tokens are transformers', degrees 1 to 3; in like time.

Whole prompts, chunks and decodes; on several ranks if the model has a tensor-parallel plan. For the time, a decode
of Llama at batch 32 with transformers' module is compared with our own implementation.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from engines.config import CacheConfig, ModelSettings
from engines.mpi.runner.loading import LoadedModel
from engines.mpi.scheduler.step_plan import WANT_LOGITS, StepPlan
from lmi_kernels.cpu import set_num_threads
from tests.support.plans import load
from tests.support.published_models import PUBLISHED
from tests.support.transformers_models import (
    TRANSFORMERS_MODELS,
    degrees,
    differences,
    save_transformers_model,
)
from tests.verify.lab import Lab, Report, run_alone

_LIMIT = 1.3
"""Maximum ratio of the step time of transformers' module to that of our own model."""
_BATCH, _CONTEXT, _BLOCK = 32, 256, 16


def verify(lab: Lab, report: Report) -> None:
    for name in TRANSFORMERS_MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            save_transformers_model(folder, name)
            for degree in degrees(folder, name):
                worst, same = differences(folder, degree)
                report.require(
                    worst < 1e-4 and same, f"{name}, degree {degree}: logits differ by at most {worst:.1e}"
                )
    own, backend = _measure_decodes()
    report.require(
        backend <= _LIMIT * own,
        f"a decode of Llama takes {backend:.1f} ms as transformers' module, {own:.1f} ms as our own model;"
        f" limit {_LIMIT} times",
    )


def _measure_decodes() -> tuple[float, float]:
    """Return the median milliseconds of a decode step of our own model and of transformers' module.

    Both have random weights in bf16 with the shape of SmolLM2-135M, native kernels and one thread. Steps alternate.
    """
    set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(PUBLISHED["smollm2-135m"]), encoding="utf-8")
        models = [_load(folder, impl) for impl in ("lmi", "transformers")]
    plan = _plan()
    samples: list[list[float]] = [[], []]
    for _ in range(60):
        for model, seconds in zip(models, samples, strict=True):
            started = time.perf_counter()
            model.steps.update(plan)
            model.steps.compute(model.steps.prepare(plan))
            seconds.append(time.perf_counter() - started)
    own, backend = (statistics.median(seconds) * 1e3 for seconds in samples)
    return own, backend


def _load(folder: str, impl: str) -> LoadedModel:
    model = ModelSettings(folder, "cost", "fp32", 2 * _CONTEXT, "dummy", impl=impl)
    return load(model, CacheConfig(_BLOCK, True, 1 << 30), 256, max_num_seqs=_BATCH)


def _plan() -> StepPlan:
    blocks = -(-_CONTEXT // _BLOCK)
    tables = [range(row * blocks, (row + 1) * blocks) for row in range(_BATCH)]
    plan = StepPlan.of_rows([_CONTEXT] * _BATCH, [1] * _BATCH, [WANT_LOGITS] * _BATCH, tables)
    return replace(plan, token_ids=list(range(_BATCH)))


if __name__ == "__main__":
    run_alone(verify)
