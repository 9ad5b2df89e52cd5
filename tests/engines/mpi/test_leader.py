"""Rank 0's loop with a model without tensors: whose request a failure is, and how an engine ends."""

from __future__ import annotations

import time
from collections import abc
from pathlib import Path
from typing import Any

import pytest

from engines.config import SchedulerConfig
from engines.core import (
    AbortReason,
    EngineInfo,
    EngineStats,
    HistogramData,
    Request,
    SampledToken,
    SchedulerSettings,
)
from engines.errors import RequestFailed
from engines.health import EngineState, StatusBoard
from engines.mpi.block_manager import BlockManager, make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.executor import StepFailed
from engines.mpi.leader import Leader
from engines.mpi.scheduler import Scheduler
from engines.mpi.sequence import Sequence
from engines.mpi.step_plan import PlanKind, StepPlan
from engines.mpi.step_runner import StepResult
from engines.mpi.trace import StepTrace
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from engines.wire import Abort, Drain, GetStats, Stats, Submit, ToEngine
from tests.engines.mpi.fakes import (
    CLIENT,
    NUM_IDS,
    VOCAB,
    FakeModel,
    ScriptedFront,
    continue_alone,
    make_request,
)

_POISON = VOCAB
"""A prompt token that the model does not survive, and never makes."""
_INFO = EngineInfo("m", "MPI", 1, "cpu", "fp32", 256, 256, 4, 4, 64, True)
_TWO = b"web process 2"


class _Executor:
    """Runs plans on the fake model; steps with the poison in them fail."""

    def __init__(self) -> None:
        self.model = FakeModel(4)
        self.kinds: list[PlanKind] = []
        self.num_steps_tried = 0

    def lead(self, plan: StepPlan, targets: Any = None, rows: Any = None) -> StepResult:
        self.kinds.append(plan.kind)
        logits: Any = None
        if plan.kind is PlanKind.STEP:
            self.num_steps_tried += 1
            self.model.apply(plan)  # what the whole brings holds, though its computation fails
            if _POISON in plan.token_ids:
                raise StepFailed("poison")
            logits = self.model.compute(plan) or None
        return StepResult(logits, [])


class _Sampler:
    """Takes the model's tokens as they are. Rows in `broken` make it fail, those in `not_finite` get nonsense."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.not_finite: set[str] = set()
        self.forgotten: list[str] = []

    def sample(self, logits: list[int], rows: abc.Sequence[SamplingRow]) -> list[SampledToken]:
        if any(row.id in self.broken for row in rows):
            raise ZeroDivisionError("a sampling step divides by zero")
        return [
            SampledToken(token, None, row.id not in self.not_finite)
            for token, row in zip(logits, rows, strict=True)
        ]

    def forget(self, sequence_id: str) -> None:
        self.forgotten.append(sequence_id)


class _Lab:
    def __init__(
        self, tmp_path: Path, paged: bool = True, max_num_seqs: int = 4, max_waiting: int = 100
    ) -> None:
        self.blocks: BlockManager = make_block_manager(64, 4, paged)
        settings = SchedulerSettings(max_num_seqs, 16, 1000, max_waiting)
        self.scheduler = Scheduler(SchedulerConfig(settings), self.blocks, 64, NUM_IDS)
        self.executor = _Executor()
        self.sampler = _Sampler()
        self.board = StatusBoard.create(tmp_path / "status", 1)
        collaborators: list[Any] = [self.scheduler, self.blocks, self.executor, self.sampler]
        stopwatch = Stopwatch(time.perf_counter)
        self.core = EngineCore(*collaborators, stopwatch, StepTrace(""))
        self.leader = Leader(self.core, self.board, stopwatch)

    def serve(self, *script: list[tuple[bytes, ToEngine]], **front: Any) -> ScriptedFront:
        """Run the script to its end; nothing may be left of it."""
        door = ScriptedFront(list(script), **front)
        self.leader.serve(door, _INFO)  # type: ignore[arg-type]
        assert door.closed
        assert self.executor.kinds[-1] is PlanKind.STOP
        assert self.blocks.num_free == self.blocks.num_blocks
        assert not self.scheduler.has_work
        return door


@pytest.fixture(params=[True, False], ids=["paged", "contiguous"])
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> _Lab:
    return _Lab(tmp_path, paged=request.param)


def _submit(*requests: Request, client: bytes = CLIENT) -> list[tuple[bytes, ToEngine]]:
    return [(client, Submit(request)) for request in requests]


def _check_alone(front: ScriptedFront, request: Request) -> None:
    """Its tokens are those that it would have had alone, and it has ended once."""
    expected, reason = continue_alone(request)
    assert front.tokens(request.id) == expected
    assert front.outputs[request.id][-1].finish_reason is reason
    assert not any(output.error_kind for output in front.outputs[request.id])


def _stats(front: ScriptedFront) -> EngineStats:
    (stats,) = [message.stats for _, message in front.sent if isinstance(message, Stats)]
    return stats


def test_requests_of_all_clients_are_served_together(lab: _Lab) -> None:
    a, b, c = make_request("a", range(5), 6), make_request("b", range(20), 3), make_request("c", [7], 1)
    front = lab.serve(_submit(a), [], _submit(b, client=_TWO), _submit(c))
    for request in (a, b, c):
        _check_alone(front, request)
    assert front.owners == {"a": CLIENT, "b": _TWO, "c": CLIENT}
    assert sorted(lab.sampler.forgotten) == ["a", "b", "c"]


def test_tokens_of_several_steps_are_sent_together_but_for_first_and_last_ones(
    lab: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 1e9)
    monkeypatch.setattr("engines.mpi.leader._LONGEST_PAUSE_SECONDS", 1e9)
    a, b = make_request("a", [1], 9), make_request("b", [2], 5)
    front = lab.serve(_submit(a), [], [], _submit(b))
    assert front.messages == [
        ["a"],
        ["a", "a", "a", "b"],
        ["a", "b", "a", "b", "a", "b", "a", "b"],
        ["a"],
    ]
    for request in (a, b):
        _check_alone(front, request)


def test_after_a_pause_tokens_are_sent_step_by_step(lab: _Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 0.0)
    front = lab.serve(_submit(make_request("a", [1], 9)))
    assert front.messages == [["a"]] * 9


def test_what_is_held_is_sent_when_nothing_is_left_to_compute(
    lab: _Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 1e9)
    monkeypatch.setattr("engines.mpi.leader._LONGEST_PAUSE_SECONDS", 1e9)
    abort = (CLIENT, Abort("a", AbortReason.CLIENT_LEFT))
    front = lab.serve(_submit(make_request("a", [1], 9)), [], [abort], [])
    assert front.messages == [["a"], ["a"]]


def test_an_idle_engine_waits_for_messages_and_beats(lab: _Lab) -> None:
    front = lab.serve([], [], _submit(make_request("a", [1], 3)))
    assert lab.executor.kinds[:3] == [PlanKind.BEAT, PlanKind.BEAT, PlanKind.STEP]
    assert front.timeouts[:3] == [2.0, 2.0, 2.0]
    assert front.timeouts[3] == 0.0, "a running engine does not wait"


def test_an_idle_engine_audits_its_blocks_once(lab: _Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.serve(_submit(make_request("a", [1], 3)), *[[] for _ in range(6)])
    assert not caplog.records
    request = make_request("holder", [1, 2], 3)
    holder = Sequence(request)
    assert lab.blocks.admit(holder, reserve=False)
    assert lab.blocks.extend(holder, 2)
    lab.core.add(make_request("b", [1], 1))
    for _ in range(6):
        lab.core.step()
    failed = [record for record in caplog.records if "the audit of the KV cache failed" in record.message]
    assert len(failed) == 1
    lab.blocks.release(holder)


# Whose failure it is


@pytest.mark.parametrize("place", range(4))
def test_a_request_that_breaks_its_step_is_isolated(lab: _Lab, place: int) -> None:
    good = [make_request(f"good {i}", range(i + 1), 5) for i in range(3)]
    poison = make_request("poison", [1, _POISON, 2], 5)
    everybody = [*good[:place], poison, *good[place:]]
    front = lab.serve(_submit(*everybody))
    (end,) = front.outputs["poison"]
    assert (end.error_kind, end.token_ids) == (RequestFailed.kind, ())
    for request in good:
        _check_alone(front, request)


def test_a_poison_that_comes_late_does_not_disturb_those_that_run(lab: _Lab) -> None:
    """It stands behind the first chunk of its prompt, and the others are decoding by then."""
    good = [make_request(f"good {i}", range(i + 1), 8) for i in range(3)]
    poison = make_request("poison", [*range(20), _POISON], 5)
    late = make_request("late", range(9), 4)
    front = lab.serve(_submit(*good), [], _submit(poison), [], [], _submit(late))
    assert front.outputs["poison"][-1].error_kind == RequestFailed.kind
    for request in (*good, late):
        _check_alone(front, request)


def test_two_poisons_in_one_step_are_both_found(lab: _Lab) -> None:
    good = [make_request(f"good {i}", range(i + 1), 5) for i in range(2)]
    poisons = [make_request(f"poison {i}", [_POISON], 5) for i in range(2)]
    front = lab.serve(_submit(poisons[0], *good, poisons[1]))
    assert [front.outputs[p.id][-1].error_kind for p in poisons] == [RequestFailed.kind] * 2
    for request in good:
        _check_alone(front, request)
    assert lab.executor.num_steps_tried < 20


def test_a_request_that_breaks_sampling_is_isolated(lab: _Lab) -> None:
    good = [make_request(f"good {i}", range(i + 1), 5) for i in range(3)]
    lab.sampler.broken = {"bad"}
    front = lab.serve(_submit(good[0], make_request("bad"), *good[1:]))
    assert front.outputs["bad"][-1].error_kind == RequestFailed.kind
    assert "divides" not in front.outputs["bad"][-1].error_message, "inner details are for the log"
    for request in good:
        _check_alone(front, request)
    assert "bad" in lab.sampler.forgotten


def test_logits_that_are_not_finite_end_their_request_only(lab: _Lab) -> None:
    good = make_request("good", range(6), 5)
    lab.sampler.not_finite = {"bad"}
    front = lab.serve(_submit(make_request("bad"), good))
    assert "not finite" in front.outputs["bad"][-1].error_message
    _check_alone(front, good)


def test_a_refusal_goes_to_who_asked_and_nothing_else_happens(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, max_num_seqs=1, max_waiting=1)
    a, b, c = make_request("a", [1], 3), make_request("b", [2], 3), make_request("c", [3], 3)
    front = lab.serve(_submit(a, b, c), _submit(make_request("long", range(70), 1), client=_TWO))
    _check_alone(front, a)
    _check_alone(front, b)
    assert [o.error_kind for o in front.outputs["c"]] == ["overloaded"]
    assert [o.error_kind for o in front.outputs["long"]] == ["invalid_request"]
    assert front.owners["long"] == _TWO


def test_failures_are_counted_apart(lab: _Lab) -> None:
    poison, good = make_request("poison", [_POISON]), make_request("good", [1, 2], 3)
    front = lab.serve(
        _submit(poison, good, make_request("left", [5], 40)),
        [],
        [(CLIENT, Abort("left", AbortReason.CLIENT_LEFT))],
        [],
        [],
        [],
        [(CLIENT, GetStats(1))],
    )
    counters = _stats(front).counters
    assert counters["lmi_requests_finished_total"] == 1
    assert counters["lmi_requests_failed_total"] == 1
    assert counters["lmi_requests_aborted_total"] == 1


def _observed(front: ScriptedFront, name: str) -> HistogramData:
    (found,) = [h for h in _stats(front).histograms if h.name == name]
    return found


@pytest.mark.parametrize("reason", AbortReason)
def test_an_answer_that_a_stop_string_ended_counts_as_finished(lab: _Lab, reason: AbortReason) -> None:
    front = lab.serve(
        _submit(make_request("a", [5], 40)), [], [], [(CLIENT, Abort("a", reason)), (CLIENT, GetStats(1))]
    )
    counters = _stats(front).counters
    finished = reason is AbortReason.STOP_SEQUENCE
    assert counters["lmi_requests_finished_total"] == finished
    assert counters["lmi_requests_aborted_total"] == (not finished)
    assert counters["lmi_tokens_generated_total"] == 3
    times = _observed(front, "lmi_time_per_output_token_seconds")
    assert sum(times.counts) == finished
    assert (times.sum > 0) is finished


# Clients that leave


def test_an_aborted_request_gets_nothing_more_and_its_blocks_are_free(lab: _Lab) -> None:
    other = make_request("b", range(4), 6)
    front = lab.serve(
        _submit(make_request("a", range(30), 20), other),
        [],
        [],
        [(CLIENT, Abort("a", AbortReason.CLIENT_LEFT)), (CLIENT, GetStats(9))],
    )
    assert not any(output.finished for output in front.outputs.get("a", []))
    _check_alone(front, other)
    stats = _stats(front)
    assert stats.gauges["lmi_requests_running"] == 1
    held = -(-(4 + 6 - 1) // 4)
    assert stats.gauges["lmi_kv_blocks_free"] >= stats.gauges["lmi_kv_blocks_total"] - held
    assert "a" in lab.sampler.forgotten


def test_nobody_aborts_the_request_of_another(lab: _Lab) -> None:
    request = make_request("a", range(4), 6)
    front = lab.serve(
        _submit(request),
        [(_TWO, Abort("a", AbortReason.CLIENT_LEFT))],
        [(_TWO, Abort("never was", AbortReason.CLIENT_LEFT))],
    )
    _check_alone(front, request)


@pytest.mark.parametrize("noticed", ["sending", "flushing"])
def test_what_a_web_process_that_is_gone_has_asked_for_is_dropped(lab: _Lab, noticed: str) -> None:
    staying = make_request("staying", range(4), 12)
    script = [
        [
            *_submit(make_request("a", range(4), 50), make_request("b", range(5), 50)),
            *_submit(staying, client=_TWO),
        ],
        [],
        [],
        [(_TWO, GetStats(1))],
    ]
    if noticed == "sending":
        front = lab.serve(*script, gone={CLIENT})
    else:
        front = lab.serve(*script, gone_when_flushed=[CLIENT])
    _check_alone(front, staying)
    assert _stats(front).gauges["lmi_requests_running"] == 1
    assert _stats(front).counters["lmi_requests_aborted_total"] == 2


# Counters


def test_stats_say_what_the_engine_has_done(lab: _Lab) -> None:
    a, b = make_request("a", range(5), 4), make_request("b", range(3), 4)
    front = lab.serve(_submit(a, b), [], [], [], [(_TWO, GetStats(77))])
    ((client, message),) = front.sent
    assert isinstance(message, Stats)
    assert (client, message.token) == (_TWO, 77)
    assert message.stats.info == _INFO
    counters, gauges = message.stats.counters, message.stats.gauges
    assert counters["lmi_steps_total"] == 4
    assert counters["lmi_tokens_generated_total"] == 8
    assert counters["lmi_prompt_tokens_total"] == 8
    assert (gauges["lmi_requests_running"], gauges["lmi_requests_waiting"]) == (0, 0)
    assert gauges["lmi_kv_blocks_free"] == gauges["lmi_kv_blocks_total"] == 64
    assert gauges["lmi_kv_blocks_cached"] == 0
    by_name = {h.name: h for h in message.stats.histograms if not h.labels}
    assert (sum(by_name["lmi_batch_size"].counts), by_name["lmi_batch_size"].sum) == (4, 8)
    for name in ("lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"):
        assert sum(by_name[name].counts) == 2, name
    assert {h.labels["part"] for h in message.stats.histograms if h.labels} >= {
        "schedule",
        "sample",
        "update",
    }


# Beginning and end


def test_the_warm_up_computes_and_leaves_no_trace(lab: _Lab) -> None:
    lab.leader.warm_up(make_request("warm-up", range(8), 2))
    assert lab.executor.kinds == [PlanKind.STEP, PlanKind.STEP]
    assert lab.blocks.num_free == lab.blocks.num_blocks
    front = lab.serve([(CLIENT, GetStats(1))])
    assert set(_stats(front).counters.values()) == {0}


@pytest.mark.parametrize("failing", ["the model", "sampling", "numbers"])
def test_a_warm_up_that_fails_is_an_error(lab: _Lab, failing: str) -> None:
    lab.sampler.broken = {"warm-up"} if failing == "sampling" else set()
    lab.sampler.not_finite = {"warm-up"} if failing == "numbers" else set()
    prompt = [_POISON] if failing == "the model" else [1, 2]
    with pytest.raises(RequestFailed, match="the warm-up failed"):
        lab.leader.warm_up(make_request("warm-up", prompt, 2))


def test_drain_finishes_what_was_accepted_and_refuses_what_comes_later(lab: _Lab) -> None:
    running = [make_request(f"r{i}", range(i + 1), 10) for i in range(4)]
    waiting = make_request("waiting", range(3), 5)
    front = lab.serve(
        _submit(*running, waiting),
        [(_TWO, Drain(60.0)), *_submit(make_request("late"))],
        _submit(make_request("later"), client=_TWO),
    )
    for request in (*running, waiting):
        _check_alone(front, request)
    for name in ("late", "later"):
        (refusal,) = front.outputs[name]
        assert refusal.error_kind == "unavailable"
        assert "shutting down" in refusal.error_message
    assert lab.board.read().state is EngineState.DRAINING


def test_ended_requests_are_forgotten(lab: _Lab, caplog: pytest.LogCaptureFixture) -> None:
    requests = [make_request("a", [1], 2), make_request("bad", [_POISON]), make_request("left", [2], 40)]
    with caplog.at_level("INFO"):
        lab.serve(_submit(*requests), [(CLIENT, Abort("left", AbortReason.CLIENT_LEFT))], [], [], [])
    assert "draining: at most 60 s for 0 requests" in caplog.messages


def test_drain_of_an_idle_engine_ends_at_once(lab: _Lab) -> None:
    front = lab.serve([(CLIENT, Drain(60.0))])
    assert len(front.timeouts) == 1
    assert lab.executor.kinds[-1] is PlanKind.STOP


def test_an_audit_that_fails_at_the_drain_is_logged_and_the_ranks_end(
    lab: _Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain has done its work: its exit code is not to say that the engine failed."""
    holder = Sequence(make_request("holder", [1, 2], 3))
    assert lab.blocks.admit(holder, reserve=False)
    holder.block_table.append(99)
    front = ScriptedFront([_submit(make_request("a", [1], 3)), [(CLIENT, Drain(60.0))]])
    lab.leader.serve(front, _INFO)  # type: ignore[arg-type]
    _check_alone(front, make_request("a", [1], 3))
    assert lab.executor.kinds[-1] is PlanKind.STOP
    assert "the audit of the KV cache failed" in caplog.text


def test_when_the_time_to_drain_is_over_the_rest_is_told(lab: _Lab) -> None:
    running = [make_request(f"r{i}", range(i + 1), 40) for i in range(4)]
    waiting = make_request("waiting", range(3), 5)
    front = lab.serve(_submit(*running), [], [*_submit(waiting, client=_TWO), (CLIENT, Drain(0.0))])
    for request in (*running, waiting):
        *before, end = front.outputs[request.id]
        assert end.error_kind == "unavailable"
        assert "could not finish" in end.error_message
        assert not any(output.finished for output in before)
        assert front.tokens(request.id) == continue_alone(request)[0][: len(before)]
    assert front.owners["waiting"] == _TWO


def test_draining_goes_on_though_all_clients_are_gone(lab: _Lab) -> None:
    front = lab.serve(_submit(make_request("a", range(4), 40)), [(_TWO, Drain(60.0))], gone={CLIENT})
    assert front.closed
