"""`python -m engines.mpi.runner.profile`: the time of steps by part, on every rank. Used by `lmi profile`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from engines.config import MpiEngineConfig
from engines.core import SamplingParams
from engines.mpi.runner.loading import load_model
from engines.mpi.runner.step_runner import StepRunner
from engines.mpi.scheduler.step_plan import WANT_LARGEST_ONLY, WANT_LOGITS, StepPlan
from engines.parallel import Communicator, make_communicator
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import OpKind, set_num_threads, shared_team

_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a step: its sequences, their number of keys, and the number of last tokens that are computed."""

    num_seqs: int
    query_len: int
    kv_len: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Median times of a step in milliseconds."""

    shape: Shape
    total: float
    """Total time: layout, model, and greedy sampling."""
    parts: dict[str, float]
    """Time by part: native operations by kind; `python` is the rest. `all_reduce` and, after the head, `python` include
    waiting for other ranks."""


def profile(
    config: MpiEngineConfig, comm: Communicator, shapes: list[Shape], repeats: int
) -> Iterator[Profile]:
    """Load the model and time steps of these shapes. All ranks call this together."""
    set_num_threads(config.parallel.threads_per_rank)
    stopwatch = Stopwatch(time.perf_counter)
    model = load_model(config, comm, torch.device("cpu"), stopwatch)
    sampler = Sampler(model.config.vocab_size, torch.device("cpu"))
    for shape in shapes:
        plan = _plan(shape, config.cache.block_size)
        samples = [_step(model.steps, sampler, plan) for _ in range(_WARM_UP + repeats)][_WARM_UP:]
        names = samples[0].keys()
        medians = {name: statistics.median(sample[name] for sample in samples) * 1e3 for name in names}
        yield Profile(shape, medians.pop("total"), medians)


def _step(runner: StepRunner, sampler: Sampler, plan: StepPlan) -> dict[str, float]:
    """Run a step; return its seconds by part."""
    before, started = _seconds(), time.perf_counter()
    runner.update(plan)
    batch = runner.prepare(plan)
    logits = runner.compute(batch).logits
    computed = _seconds()
    if logits is not None:  # not from a head that finds the largest logit itself
        rows = [SamplingRow(f"row {i}", _GREEDY, [0], 1) for i in range(len(logits))]
        sampler.sample(logits, rows)
    total = time.perf_counter() - started
    parts = {name: computed[name] - before.get(name, 0.0) for name in computed}
    parts["sampling"] = sum(_seconds().values()) - sum(computed.values())
    return {**parts, "python": total - sum(parts.values()), "total": total}


_GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0)


def _seconds() -> dict[str, float]:
    team = shared_team()
    if team is None:
        return {}
    return {kind.name.lower(): team.seconds((kind,)) for kind in OpKind}


def _plan(shape: Shape, block_size: int) -> StepPlan:
    count, num_blocks = shape.num_seqs, -(-shape.kv_len // block_size)
    tables = [range(row * num_blocks, (row + 1) * num_blocks) for row in range(count)]
    lens = [shape.query_len] * count
    plan = StepPlan.of_rows([shape.kv_len] * count, lens, [WANT_LOGITS | WANT_LARGEST_ONLY] * count, tables)
    # Various tokens, because the choice of experts depends on them.
    return replace(plan, token_ids=[i % 1000 for i in range(plan.num_tokens)])


def main(argv: list[str] | None = None) -> int:
    """Print one line of JSON for each shape, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="MpiEngineConfig as JSON")
    parser.add_argument("--shapes", required=True, help="num_seqs,query_len,kv_len, separated by blanks")
    parser.add_argument("--repeats", type=int, required=True)
    arguments = parser.parse_args(argv)
    config = MpiEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    shapes = [Shape(*map(int, shape.split(","))) for shape in arguments.shapes.split()]
    comm = make_communicator(config.parallel.tp_size, torch.device("cpu"), arguments.config.parent)
    try:
        for found in profile(config, comm, shapes, arguments.repeats):
            if comm.rank == 0:
                print(json.dumps(asdict(found)), flush=True)
    except Exception:
        traceback.print_exc()
        comm.abort()  # the other ranks wait for this one
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
