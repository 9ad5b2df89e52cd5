"""Run by mpirun as each rank of test_gpu_ranks.py: generate on the GPU path, with tokens fed back on the device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from engines.core import SamplingParams
from engines.parallel import make_communicator
from engines.sampling.batch import SamplingRow
from tests.support.plans import PlanMaker
from tests.support.quick_interpreter import quick_interpreter
from tests.support.tiny_models import make_runner


def main() -> None:
    folder, prompt, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    comm = make_communicator(2, torch.device("cpu"), folder)
    runner = make_runner(folder / "model", comm)
    maker = PlanMaker()
    maker.begin(3, [5, 1, 9, 30, 2])
    rows = [SamplingRow("a", SamplingParams(max_new_tokens=9), [0], 1)] if comm.rank == 0 else []
    tokens = []
    for step in range(count):
        plan = maker.plan({3: prompt if step == 0 else [-1]})
        runner.steps.update(plan)
        pending = runner.steps.compute(runner.steps.prepare(plan), rows=rows).pending_tokens
        if (pending is not None) != (comm.rank == 0):
            raise AssertionError("only rank 0 may have pending tokens")
        tokens += [] if pending is None else [token.token_id for token in pending.wait()]
    (folder / f"{comm.rank}.json").write_text(json.dumps(tokens), encoding="utf-8")


if __name__ == "__main__":
    with quick_interpreter():
        main()
