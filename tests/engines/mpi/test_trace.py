"""The step trace on a disk that is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.mpi.trace import StepTrace
from tests.engines.mpi.fakes import make_request
from tests.engines.mpi.leader_lab import Lab, check_output, submit
from tests.support.logs import Logs

_FULL = "/dev/full"


def test_requests_are_served_when_the_disk_of_the_trace_is_full(tmp_path: Path, logs: Logs) -> None:
    request = make_request("a", range(5), 4)
    check_output(Lab(tmp_path, trace=_FULL).serve(submit(request), [], [], []), request)
    (warning,) = logs.warnings
    assert "option.step_trace" in warning
    assert "No space left" in warning


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_full_disk_stops_the_trace_with_one_warning(method: str, logs: Logs) -> None:
    trace = StepTrace(_FULL)
    step: Any = SimpleNamespace(sequences=[], plan=SimpleNamespace(starts=[], query_lens=[]))
    large = {"x" * (4 << 20 if method == "write" else 1): 1}  # larger than the buffer: written immediately
    trace.record_step(step, 0.0, {}, lambda: large)
    if method == "flush":
        trace.flush()
    if method == "close":
        trace.close()
    assert len(logs.warnings) == 1
    trace.record_arrival(make_request("a", range(3), 1))
    trace.record_step(step, 0.0, {}, lambda: large)
    trace.flush()
    trace.close()
    assert len(logs.warnings) == 1
