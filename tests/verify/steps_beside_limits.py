"""`python -m tests.verify.steps_beside_limits CONFIG FOLDER ROUNDS`: steps of a model beside the limits of a machine.

In each round, steps of one sequence, of 32 sequences and of a chunk of 256 tokens run between two measurements of the
limits. Prints a line of JSON for each: the step, and the higher value of each limit. On a virtual machine, other users
of the host slow down both for seconds at a time, so only their ratio is stable.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from engines.config import MpiEngineConfig
from engines.mpi.runner.profile import Shape, profile
from engines.parallel import Communicator
from tests.bench.limits import combined, measure

SHAPES = (Shape(1, 1, 160), Shape(32, 1, 160), Shape(1, 256, 256))
_REPEATS = 5


def main(config: str, folder: str, rounds: str) -> None:
    before = measure(Path(folder), tries=1)
    engine = MpiEngineConfig.from_json(Path(config).read_text(encoding="utf-8"))
    for step in profile(engine, Communicator(), list(SHAPES) * int(rounds), _REPEATS):
        after = measure(Path(folder), tries=1)
        limits = combined((before, after), max)
        assert limits is not None
        print(json.dumps({"step": asdict(step), "limits": asdict(limits)}), flush=True)
        before = after


if __name__ == "__main__":
    main(*sys.argv[1:])
