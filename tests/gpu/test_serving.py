"""Part `server` of the GPU check, with a tiny model on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import serving
from tests.gpu.context import Context
from tests.gpu.results import Results
from tests.gpu.timing import Deadline


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_all_checks_of_the_server_pass(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    results = Results("server", cpu, smoke=True)
    serving.check(Context(results, cpu, True, tmp_path, tmp_path, Deadline(600.0)))
    assert [entry.name for entry in results.entries if entry.passed is not None] == [
        "engine=MPI: /ping answers while the model loads",
        "engine=MPI: tokens of 2 requests at once",
        "engine=MPI: SIGTERM during a stream",
        "engine=MPI, killed: /ping answers while the model loads",
        "engine=MPI: SIGKILL of the engine during a stream",
        "engine=MPI: memory of a killed engine is free",
        "engine=Python: /ping answers while the model loads",
        "engine=Python: tokens of 2 requests at once",
    ]
    assert not results.failed
