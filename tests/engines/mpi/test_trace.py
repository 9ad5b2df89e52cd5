"""The step trace: requests that arrive or end between steps, and a disk that is full."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.core import AbortReason
from engines.mpi.engine_core import EngineCore
from engines.mpi.trace import StepTrace
from tests.engines.mpi.fakes import make_request
from tests.engines.mpi.leader_lab import Lab, check_output, submit
from tests.support.logs import Logs

_FULL = "/dev/full"


def _records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _after_one_step_of_a(folder: Path) -> tuple[Path, EngineCore]:
    """Return a step trace and its engine, which has run one step of request `a`."""
    file = folder / "steps.jsonl"
    core = Lab(folder, trace=str(file)).core
    core.add(make_request("a", max_new_tokens=9))
    core.step()
    return file, core


def test_requests_that_are_aborted_after_the_last_step_are_recorded_at_once(tmp_path: Path) -> None:
    file, core = _after_one_step_of_a(tmp_path)
    core.abort("a", AbortReason.STOP_SEQUENCE)
    core.add(make_request("b"))
    core.abort("b", AbortReason.CLIENT_LEFT)
    for _ in range(3):
        core.step()
    records = _records(file)
    core.stop()
    assert _records(file) == records
    step, idle = records
    assert [row[0] for row in step["plan"]] == ["a"]
    assert idle["plan"] == []
    assert [arrival["id"] for arrival in idle["arrivals"]] == ["b"]
    assert idle["ends"] == [{"id": "a", "reason": "stop_sequence"}, {"id": "b", "reason": "client_left"}]
    assert (idle["running"], idle["waiting"], idle["blocks_used"]) == (0, 0, 0)
    assert idle["time"] >= step["time"]


def test_a_timeout_has_one_name_whether_the_engine_or_the_web_process_is_first(tmp_path: Path) -> None:
    file, core = _after_one_step_of_a(tmp_path)
    core.abort("a", AbortReason.TIMEOUT)
    core.add(dataclasses.replace(make_request("b"), deadline=0.0))
    core.step()
    core.stop()
    assert [end["reason"] for end in _records(file)[-1]["ends"]] == ["deadline_exceeded"] * 2
    assert (core.metrics.failed, core.metrics.aborted) == (2, 0)


def test_requests_that_end_at_shutdown_are_recorded(tmp_path: Path) -> None:
    file, core = _after_one_step_of_a(tmp_path)
    core.abort("a", AbortReason.SHUTDOWN)
    core.stop()
    assert _records(file)[-1]["ends"] == [{"id": "a", "reason": "shutdown"}]


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
        trace.flush(0.0, dict)
    if method == "close":
        trace.close()
    assert len(logs.warnings) == 1
    trace.record_arrival(make_request("a", range(3), 1))
    trace.record_step(step, 0.0, {}, lambda: large)
    trace.flush(0.0, dict)
    trace.close()
    assert len(logs.warnings) == 1
