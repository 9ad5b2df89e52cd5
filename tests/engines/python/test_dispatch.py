"""The dispatcher's loop with a generating process without tensors: batches, failures, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.config import BatchConfig, ModelSettings, ParallelConfig, PythonEngineConfig
from engines.core import AbortReason, EngineInfo, EngineStats, Request
from engines.health import EngineState, StatusBoard
from engines.python.batcher import DynamicBatcher
from engines.python.dispatch import MAX_DEATHS, REACTION_SECONDS, Dispatch, EngineFailed
from engines.wire import (
    Abort,
    ConfigureScheduler,
    Drain,
    GetStats,
    SchedulerState,
    Stats,
    Submit,
    ToEngine,
)
from tests.engines.mpi.fakes import CLIENT, continue_alone, make_request
from tests.engines.python.fakes import Clock, ClockedFront, FakeGenerator

_INFO = EngineInfo("m", "Python", 1, "cpu", "fp32", 0, 0, 0, 4, 64, False)
_TWO = b"web process 2"
_DELAY = 0.1
_TIMEOUT = 30.0
Turn = list[tuple[bytes, ToEngine]]


class _Lab:
    def __init__(self, tmp_path: Path, batch_size: int = 4, max_waiting: int = 100, **generator: Any) -> None:
        self.clock = Clock()
        config = PythonEngineConfig(
            ModelSettings("/model", "m", "fp32", 64),
            ParallelConfig(),
            BatchConfig(batch_size, _DELAY, max_waiting, _TIMEOUT),
        )
        self.generator = FakeGenerator(self.clock, **generator)
        self.board = StatusBoard.create(tmp_path / "status", 2)
        batcher = DynamicBatcher(config.batching)
        self.dispatch = Dispatch(config, _INFO, batcher, self.generator, self.board, 1.0, self.clock)

    def serve(self, *script: Turn, **front: Any) -> ClockedFront:
        door = ClockedFront(list(script), clock=self.clock, generator=self.generator, **front)
        self.door = door
        self.dispatch.serve(door)  # type: ignore[arg-type]
        assert door.watched == []
        return door


@pytest.fixture
def lab(tmp_path: Path) -> _Lab:
    return _Lab(tmp_path)


def _submit(*requests: Request, client: bytes = CLIENT) -> Turn:
    return [(client, Submit(request)) for request in requests]


def _turns(count: int) -> list[Turn]:
    return [[] for _ in range(count)]


def _check(front: ClockedFront, request: Request) -> None:
    expected, reason = continue_alone(request)
    assert front.tokens(request.id) == expected
    assert front.outputs[request.id][-1].finish_reason is reason
    assert not any(output.error_kind for output in front.outputs[request.id])


def _stats(front: ClockedFront) -> EngineStats:
    return [message.stats for _, message in front.sent if isinstance(message, Stats)][-1]


def _requests(count: int, tokens: int = 4) -> list[Request]:
    return [make_request(f"r{i}", range(i + 1), tokens) for i in range(count)]


def test_requests_of_all_clients_share_a_batch(lab: _Lab) -> None:
    a, b = make_request("a", range(5), 6), make_request("b", [7], 1)
    front = lab.serve(_submit(a), _submit(b, client=_TWO))
    _check(front, a)
    _check(front, b)
    assert lab.generator.batches == [["a", "b"]]
    assert front.owners == {"a": CLIENT, "b": _TWO}
    assert [len(output.token_ids) for output in front.outputs["a"]] == [1] * 6, "tokens come as they are made"


def test_a_lone_request_leaves_after_the_delay(lab: _Lab) -> None:
    lab.serve(_submit(make_request("a")), *_turns(20))
    assert lab.generator.left_at[0] - 1000.0 == pytest.approx(_DELAY)
    assert lab.generator.deadlines == [lab.generator.left_at[0] + _TIMEOUT]


def test_a_full_batch_leaves_at_once_and_the_rest_makes_the_next(lab: _Lab) -> None:
    requests = _requests(6)
    front = lab.serve(_submit(*requests), *_turns(20))
    assert lab.generator.batches == [["r0", "r1", "r2", "r3"], ["r4", "r5"]]
    assert lab.generator.left_at[0] == 1000.0
    first_ends = 1000.0 + 4 * lab.generator.step_seconds
    assert lab.generator.left_at[1] == pytest.approx(first_ends + _DELAY)
    for request in requests:
        _check(front, request)


def test_an_idle_dispatcher_beats(lab: _Lab) -> None:
    front = lab.serve(*_turns(3))
    assert front.timeouts[:3] == [2.0] * 3
    assert lab.board.read().state is EngineState.DRAINING


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (make_request("x", range(70), 1), "71, more than the limit of 64"),
        (make_request("x", [], 1), "at least one prompt token"),
        (make_request("x", [1], 0), "max_new_tokens of at least 1"),
        (make_request("r0"), "in use"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_else_happens(
    lab: _Lab, request_: Request, words: str
) -> None:
    front = lab.serve(
        _submit(make_request("r0", range(9), 6)), *_turns(3), _submit(request_, client=_TWO), *_turns(20)
    )
    told = [message for client, message in front.refusals if client == _TWO]
    assert [output.error_kind for output in told] == ["invalid_request"]
    assert words in told[0].error_message
    assert lab.generator.batches == [["r0"]]


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=1, max_waiting=1)
    a, b, c = _requests(3)
    front = lab.serve(_submit(a, b, c), *_turns(10))
    _check(front, a)
    _check(front, b)
    assert [(output.id, output.error_kind) for _, output in front.refusals] == [("r2", "overloaded")]


# Clients that leave


def test_an_aborted_request_is_dropped_from_the_queue_or_forgotten_in_its_batch(lab: _Lab) -> None:
    running, waiting = _requests(4, tokens=8), make_request("waiting")
    front = lab.serve(
        _submit(*running, waiting),
        [],
        [
            (CLIENT, Abort("r1", AbortReason.CLIENT_LEFT)),
            (CLIENT, Abort("waiting", AbortReason.CLIENT_LEFT)),
            (CLIENT, GetStats(1)),
        ],
        *_turns(20),
    )
    assert lab.generator.forgotten == ["r1"]
    assert lab.generator.batches == [["r0", "r1", "r2", "r3"]]
    assert not any(output.finished for output in front.outputs.get("r1", []))
    assert "waiting" not in front.outputs
    for request in (running[0], *running[2:]):
        _check(front, request)
    stats = _stats(front)
    assert (stats.gauges["lmi_requests_running"], stats.gauges["lmi_requests_waiting"]) == (3, 0)
    assert stats.counters["lmi_requests_aborted_total"] == 2


def test_an_answer_that_a_stop_string_ended_counts_as_finished(lab: _Lab) -> None:
    stop = Abort("r0", AbortReason.STOP_SEQUENCE)
    front = lab.serve(
        _submit(*_requests(4, tokens=20)), *_turns(4), [(CLIENT, stop)], [(CLIENT, GetStats(1))], *_turns(40)
    )
    assert lab.generator.forgotten == ["r0"]
    num_tokens = len(front.tokens("r0"))
    assert 1 < num_tokens < 20
    stats = _stats(front)
    assert stats.counters["lmi_requests_finished_total"] == 1
    assert stats.counters["lmi_requests_aborted_total"] == 0
    (times,) = [h for h in stats.histograms if h.name == "lmi_time_per_output_token_seconds"]
    assert (sum(times.counts), times.sum) == (1, pytest.approx(lab.generator.step_seconds))


def test_nobody_aborts_the_request_of_another(lab: _Lab) -> None:
    request = make_request("a", range(4), 6)
    front = lab.serve(
        _submit(request),
        [(_TWO, Abort("a", AbortReason.CLIENT_LEFT))],
        [(_TWO, Abort("never was", AbortReason.CLIENT_LEFT))],
        *_turns(10),
    )
    _check(front, request)


@pytest.mark.parametrize("noticed", ["sending", "flushing"])
def test_what_a_web_process_that_is_gone_has_asked_for_is_dropped(lab: _Lab, noticed: str) -> None:
    staying = make_request("staying", range(4), 12)
    turns = [
        [
            *_submit(make_request("a", range(4), 50), make_request("b", [1], 50)),
            *_submit(staying, client=_TWO),
        ],
        *_turns(4),
        [(_TWO, GetStats(1))],
    ]
    gone: dict[str, Any] = {"gone": {CLIENT}} if noticed == "sending" else {"gone_when_flushed": [CLIENT]}
    front = lab.serve(*turns, *_turns(20), **gone)
    _check(front, staying)
    assert _stats(front).gauges["lmi_requests_running"] == 1
    assert _stats(front).counters["lmi_requests_aborted_total"] == 2


def test_there_is_no_scheduler_to_change(lab: _Lab) -> None:
    front = lab.serve([(CLIENT, ConfigureScheduler(7, {"max_waiting": 1}))])
    assert (CLIENT, SchedulerState(7, None, {})) in front.sent


# A generating process that ends


def test_a_batch_whose_process_ends_is_run_again_and_no_token_is_sent_twice(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=2, dies_after=[2])
    requests = _requests(3)
    front = lab.serve(_submit(*requests), *_turns(40), [(CLIENT, GetStats(1))])
    for request in requests:
        _check(front, request)
    assert lab.generator.batches == [["r0", "r1"], ["r0"], ["r1"], ["r2"]]
    assert lab.generator.num_restarts == 1
    counters = _stats(front).counters
    assert counters["lmi_generator_restarts_total"] == 1
    assert counters["lmi_requests_finished_total"] == 3
    assert counters["lmi_tokens_generated_total"] == sum(len(continue_alone(each)[0]) for each in requests)


def test_a_request_that_ends_the_process_again_and_again_is_refused_and_the_engine_stays(
    tmp_path: Path,
) -> None:
    poison = make_request("poison", range(9), 4)
    lab = _Lab(tmp_path, batch_size=4, poison=poison.prompt_token_ids)
    good = _requests(3)
    seeds = [replace(poison.sampling, seed=i) for i in range(4)]
    again = [replace(poison, id=f"again {i}", sampling=sampling) for i, sampling in enumerate(seeds)]
    front = lab.serve(
        _submit(good[0], poison, good[1]),
        *_turns(40),
        *(_submit(each) for each in again),
        _submit(good[2]),
        *_turns(40),
    )
    for request in good:
        _check(front, request)
    (end,) = front.outputs["poison"]
    assert end.error_kind == "request_failed"
    assert "2 times while it ran this request" in end.error_message
    for request in again:
        (end,) = front.outputs[request.id]
        assert end.error_kind == "request_failed"
        assert "not run again" in end.error_message
    assert lab.generator.num_restarts == 2


def test_many_culprits_at_once_do_not_end_the_engine(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=8, dies_after=[0] * 7)
    requests, last = _requests(6), make_request("last")
    front = lab.serve(_submit(*requests), *_turns(60), _submit(last), *_turns(20))
    assert [front.outputs[each.id][-1].error_kind for each in requests] == ["request_failed"] * 6
    _check(front, last)
    assert lab.generator.num_restarts == 7


def test_an_answer_that_does_not_come_out_the_same_ends_with_an_error(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=1, dies_after=[2], forgets_after_restart=1)
    front = lab.serve(
        _submit(make_request("a", range(5), 6)), *_turns(40), _submit(make_request("b")), *_turns(20)
    )
    *before, end = front.outputs["a"]
    assert len(before) == 2
    assert end.error_kind == "request_failed"
    assert "could not be repeated" in end.error_message
    assert lab.generator.forgotten == ["a"]
    assert not any(output.error_kind for output in front.outputs["b"])


def test_a_request_that_waits_to_be_run_again_can_be_aborted(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=3, dies_after=[1], reload_looks=3)
    requests = _requests(3)
    front = lab.serve(
        _submit(*requests),
        [],
        [],
        [(CLIENT, Abort("r1", AbortReason.CLIENT_LEFT)), (CLIENT, GetStats(1))],
        *_turns(40),
    )
    assert lab.generator.batches[1:] == [["r0"], ["r2"]]
    assert _stats(front).gauges["lmi_requests_waiting"] == 2
    _check(front, requests[0])
    _check(front, requests[2])


def test_while_it_is_started_again_the_board_says_so_and_new_requests_are_told(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=1, dies_after=[1], reload_looks=3)
    states: list[tuple[EngineState, str]] = []
    set_state = lab.board.set_state

    def note(state: EngineState, reason: str = "") -> None:
        states.append((state, reason))
        set_state(state, reason)

    lab.board.set_state = note  # type: ignore[method-assign]
    early, late = make_request("early"), make_request("late")
    # It computes in the second turn, ends in the third, and is asked three times from the fourth on.
    front = lab.serve(
        _submit(make_request("a")), [], [], _submit(early), *_turns(5), _submit(late), *_turns(9)
    )
    assert states == [
        (EngineState.READY, ""),
        (EngineState.STARTING, "the generating process is being started again: it was ended by SIGKILL"),
        (EngineState.READY, ""),
        (EngineState.DRAINING, ""),
    ]
    (refusal,) = front.outputs["early"]
    assert refusal.error_kind == "unavailable"
    assert "started again" in refusal.error_message
    _check(front, late)


def test_a_process_that_ends_again_and_again_without_a_request_ends_the_engine(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, dies_idle=MAX_DEATHS)
    with pytest.raises(EngineFailed, match="3 times, and no request is the cause; at last it was ended by"):
        lab.serve(*_turns(30))
    assert lab.generator.num_restarts == MAX_DEATHS - 1


def test_one_that_does_not_become_ready_again_is_killed(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=1, dies_after=[0], reload_looks=1000)
    with pytest.raises(EngineFailed, match="it was not ready after 65 s"):
        lab.serve(_submit(*_requests(2)), *_turns(500))


# A batch whose time is over


def test_a_process_that_is_stuck_when_the_time_is_over_is_killed_and_comes_back(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=2, stuck_after=[2])
    requests = _requests(3)
    front = lab.serve(_submit(*requests), *_turns(60))
    for request in requests[:2]:
        end = front.outputs[request.id][-1]
        assert end.error_kind == "deadline_exceeded"
        assert "30 s (option.predict_timeout); 2 tokens were generated" in end.error_message
    assert lab.generator.num_kills == 1
    _check(front, requests[2])
    assert lab.generator.left_at[1] >= 1000.0 + _TIMEOUT + REACTION_SECONDS


# Counters


def test_stats_say_what_the_engine_has_done(lab: _Lab) -> None:
    a, b = make_request("a", range(5), 4), make_request("b", range(3), 2)
    front = lab.serve(_submit(a, b), *_turns(20), [(_TWO, GetStats(77))])
    ((client, message),) = front.sent
    assert isinstance(message, Stats)
    assert (client, message.token, message.stats.info) == (_TWO, 77, _INFO)
    counters = message.stats.counters
    assert counters["lmi_steps_total"] == 4
    assert counters["lmi_tokens_generated_total"] == 6
    assert counters["lmi_prompt_tokens_total"] == 8
    assert counters["lmi_requests_finished_total"] == 2
    assert counters["lmi_padding_tokens_total"] == 3
    assert counters["lmi_ended_row_tokens_total"] == 5
    assert not any(name.startswith("lmi_kv") for name in message.stats.gauges)
    by_name = {h.name: h for h in message.stats.histograms if not h.labels}
    assert (sum(by_name["lmi_batch_size"].counts), by_name["lmi_batch_size"].sum) == (1, 2)
    for name in ("lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"):
        assert sum(by_name[name].counts) == 2, name
    assert by_name["lmi_time_per_output_token_seconds"].sum == pytest.approx(2 * lab.generator.step_seconds)


# The end


def test_drain_finishes_what_was_accepted_and_refuses_what_comes_later(lab: _Lab) -> None:
    requests = _requests(6)
    front = lab.serve(
        _submit(*requests), [], [(_TWO, Drain(60.0)), *_submit(make_request("late"))], *_turns(40)
    )
    for request in requests:
        _check(front, request)
    (refusal,) = front.outputs["late"]
    assert refusal.error_kind == "unavailable"
    assert "shutting down" in refusal.error_message
    assert lab.board.read().state is EngineState.DRAINING
    assert front.script, "it ends when all is done, not when the time is over"


def test_when_the_time_to_drain_is_over_the_rest_is_told(lab: _Lab) -> None:
    running, waiting = _requests(4, tokens=40), make_request("waiting")
    front = lab.serve(
        _submit(*running), [], [*_submit(waiting, client=_TWO), (CLIENT, Drain(1.0))], *_turns(40)
    )
    for request in (*running, waiting):
        *before, end = front.outputs[request.id]
        assert end.error_kind == "unavailable"
        assert "could not finish" in end.error_message
        assert not any(output.finished for output in before)
    assert front.owners["waiting"] == _TWO


def test_a_process_that_ends_while_draining_does_not_make_the_engine_ready_again(tmp_path: Path) -> None:
    lab = _Lab(tmp_path, batch_size=1, dies_after=[2])
    requests = _requests(2)
    front = lab.serve(_submit(*requests), [], [(CLIENT, Drain(60.0))], *_turns(40))
    _check(front, requests[0])
    _check(front, requests[1])
    assert lab.board.read().state is EngineState.DRAINING


def test_drain_of_an_idle_engine_ends_at_once(lab: _Lab) -> None:
    front = lab.serve([(CLIENT, Drain(60.0))])
    assert len(front.timeouts) == 1
