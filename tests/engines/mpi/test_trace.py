"""The step trace on a disk that is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.mpi.trace import StepTrace
from tests.engines.mpi.fakes import make_request
from tests.engines.mpi.leader_lab import Lab, check_output, submit

_FULL = "/dev/full"


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_requests_are_served_when_the_disk_of_the_trace_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = make_request("a", range(5), 4)
    check_output(Lab(tmp_path, trace=_FULL).serve(submit(request), [], [], []), request)
    (warning,) = _warnings(caplog)
    assert "option.step_trace" in warning
    assert "No space left" in warning


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_full_disk_stops_the_trace_with_one_warning(method: str, caplog: pytest.LogCaptureFixture) -> None:
    trace = StepTrace(_FULL)
    step: Any = SimpleNamespace(sequences=[], plan=SimpleNamespace(starts=[], query_lens=[]))
    large = {"x" * (4 << 20 if method == "write" else 1): 1}  # larger than the buffer: written immediately
    trace.record_step(step, 0.0, {}, lambda: large)
    if method == "flush":
        trace.flush()
    if method == "close":
        trace.close()
    assert len(_warnings(caplog)) == 1
    trace.record_arrival(make_request("a", range(3), 1))
    trace.record_step(step, 0.0, {}, lambda: large)
    trace.flush()
    trace.close()
    assert len(_warnings(caplog)) == 1
