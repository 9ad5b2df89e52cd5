"""Slots of a batch, from step traces and from times that clients measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container.measure.report.slots import (
    SlotSpan,
    SlotUse,
    read_step_trace,
    slots_of_requests,
    slots_of_steps,
)
from tests.container.measure.report.made_up import STEP_SECONDS, made_up_steps, write_trace


def use_of(steps: list[dict[str, Any]]) -> SlotUse:
    use = slots_of_steps(steps)
    assert use is not None
    return use


def test_a_static_batch_leaves_the_slots_of_short_responses_empty() -> None:
    use = use_of(made_up_steps([10, 2, 4, 4], 2, static=True))
    assert use.num_slots == 2
    # 10 steps for the responses of 10 and 2 tokens, then 4 steps for two responses of 4.
    assert use.seconds == pytest.approx(14 * STEP_SECONDS - 0.05 * STEP_SECONDS)
    assert use.waste == pytest.approx(8 / 28, abs=0.01)


def test_continuous_batching_fills_a_slot_in_the_next_step() -> None:
    use = use_of(made_up_steps([10, 2, 4, 4], 2, static=False))
    assert use.waste == pytest.approx(0.0, abs=0.01)
    assert [span.request for span in use.spans if span.slot == 1 and span.is_prefill] == [1, 2, 3]


def test_prefill_and_decode_are_separate_spans() -> None:
    prefill, decode = use_of(made_up_steps([3], 1, static=False)).spans
    assert (prefill.is_prefill, decode.is_prefill) == (True, False)
    assert prefill.end == pytest.approx(STEP_SECONDS) == decode.start


def test_a_preempted_request_returns_to_its_slot_if_it_is_free() -> None:
    steps = made_up_steps([6, 6], 2, static=False)
    for step in steps[2:4]:
        step["plan"] = [row for row in step["plan"] if row[0] == "r1"]
    use = use_of(steps)
    first = [span for span in use.spans if span.request == 0]
    assert {span.slot for span in first} == {0}
    assert [(round(span.start / STEP_SECONDS), round(span.end / STEP_SECONDS)) for span in first] == [
        (0, 1),
        (1, 2),
        (4, 6),
    ]


def test_idle_time_between_two_steps_is_waste() -> None:
    steps = made_up_steps([4], 1, static=False)
    for step in steps[2:]:
        step["time"] += 1.0
    use = use_of(steps)
    assert use.seconds == pytest.approx(1 + 4 * STEP_SECONDS, rel=0.01)
    assert use.waste == pytest.approx(1 / (1 + 4 * STEP_SECONDS), rel=0.02)


def test_a_record_without_a_step_changes_nothing() -> None:
    """The engine writes one when requests end after the last step."""
    first, second = (made_up_steps([4, 2], 2, static=False, began=began) for began in (0.0, 9.0))
    idle = {**first[-1], "time": 5.0, "arrivals": [], "plan": [], "seconds": {}}
    assert use_of([*first, idle, *second]) == use_of([*first, *second])


def test_only_the_steps_of_a_round_are_read_and_a_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    warm_up = made_up_steps([4, 4], 2, static=False, began=0.0)
    path = tmp_path / "steps.jsonl"
    write_trace(path, [*warm_up, *made_up_steps([5, 5], 2, static=False, began=100.0)])
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(warm_up[0])[:40])
    use = read_step_trace(path, 99.0, 200.0)
    assert use is not None
    assert use.is_traced
    assert use.seconds == pytest.approx(5 * STEP_SECONDS, rel=0.02)
    assert read_step_trace(path, 300.0, 400.0) is None
    assert read_step_trace(tmp_path / "none.jsonl", 0.0, 400.0) is None


def test_without_a_trace_slots_are_estimated_from_first_and_last_tokens() -> None:
    use = slots_of_requests([(1.0, 3.0), (1.0, 2.0), (2.5, 4.0), (3.5, 4.0)])
    assert use is not None
    assert not use.is_traced
    assert use.spans == (
        SlotSpan(0, 1, 0.0, 1.0, False),
        SlotSpan(0, 2, 1.5, 3.0, False),
        SlotSpan(1, 0, 0.0, 2.0, False),
        SlotSpan(1, 3, 2.5, 3.0, False),
    )
    assert slots_of_requests([]) is None


def test_a_file_that_is_not_a_step_trace_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    for text in ('{"a": 1}', "[1]", "1", '{"time": 1.0}', '{"time": 1.0, "arrivals": [], "plan": [1]}'):
        path.write_text(text + "\n", encoding="utf-8")
        assert read_step_trace(path, 0.0, 2.0) is None
