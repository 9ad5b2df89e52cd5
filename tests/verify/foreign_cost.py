"""`python -m tests.verify.foreign_cost`: compare decode times of a Llama as transformers' module and as our own model.

Both have random weights in bf16 with the shape of SmolLM2-135M, native kernels and one thread. Their steps alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings
from engines.mpi.runner.loading import LoadedModel, load_model
from engines.mpi.scheduler.step_plan import WANT_LOGITS, StepPlan
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import set_num_threads

LIMIT = 1.3
"""Maximum ratio of the step time of transformers' module to that of our own model."""
_BATCH, _CONTEXT, _BLOCK = 32, 256, 16
_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def measure(steps: int) -> tuple[float, float]:
    """Return the median milliseconds of a decode step of our own model and of transformers' module."""
    set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_SHAPE), encoding="utf-8")
        models = [_load(folder, impl) for impl in ("lmi", "transformers")]
    plan = _plan()
    samples: list[list[float]] = [[], []]
    for _ in range(steps):
        for model, seconds in zip(models, samples, strict=True):
            started = time.perf_counter()
            model.steps.update(plan)
            model.steps.compute(model.steps.prepare(plan))
            seconds.append(time.perf_counter() - started)
    own, foreign = (statistics.median(seconds) * 1e3 for seconds in samples)
    return own, foreign


def _load(folder: str, impl: str) -> LoadedModel:
    settings = SchedulerSettings(
        max_num_seqs=_BATCH, max_prefill_tokens=256, max_num_batched_tokens=256, max_waiting=8
    )
    config = MpiEngineConfig(
        model=ModelSettings(folder, "cost", "fp32", 2 * _CONTEXT, "dummy", impl=impl),
        parallel=ParallelConfig(),
        cache=CacheConfig(_BLOCK, True, 1 << 30),
        scheduler=SchedulerConfig(settings),
    )
    return load_model(config, Communicator(), torch.device("cpu"), Stopwatch(time.perf_counter))


def _plan() -> StepPlan:
    blocks = -(-_CONTEXT // _BLOCK)
    tables = [range(row * blocks, (row + 1) * blocks) for row in range(_BATCH)]
    plan = StepPlan.of_rows([_CONTEXT] * _BATCH, [1] * _BATCH, [WANT_LOGITS] * _BATCH, tables)
    return replace(plan, token_ids=list(range(_BATCH)))


def main() -> int:
    """Print both times and their ratio. Returns 1 if the ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    own, foreign = measure(parser.parse_args().steps)
    print(f"decode of {_BATCH} sequences: own {own:.1f} ms, transformers' module {foreign:.1f} ms", end="")
    print(f": {foreign / own:.2f} times; limit {LIMIT}")
    return 0 if foreign <= LIMIT * own else 1


if __name__ == "__main__":
    sys.exit(main())
