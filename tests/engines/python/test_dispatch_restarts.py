"""The dispatcher when its generating process dies, hangs or does not restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core import AbortReason, Request
from engines.health import EngineState
from engines.python.dispatch import REACTION_SECONDS
from engines.python.request_loop import MAX_CRASHES, EngineFailed
from engines.wire import Abort, GetStats
from tests.engines.mpi.fakes import CLIENT, expected_output, make_request
from tests.engines.python.dispatch_lab import (
    TIMEOUT,
    Lab,
    Turn,
    check_output,
    make_requests,
    pauses,
    read_stats,
    submit,
)


def test_a_batch_whose_process_dies_is_rerun_and_no_token_is_sent_twice(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=2, dies_after=[2])
    requests = make_requests(3)
    socket = lab.serve(submit(*requests), *pauses(40), [(CLIENT, GetStats(1))])
    for request in requests:
        check_output(socket, request)
    assert lab.generator.batches == [["r0", "r1"], ["r0"], ["r1"], ["r2"]]
    assert lab.generator.num_restarts == 1
    counters = read_stats(socket).counters
    assert counters["lmi_generator_restarts_total"] == 1
    assert counters["lmi_requests_finished_total"] == 3
    assert counters["lmi_tokens_generated_total"] == sum(len(expected_output(each)[0]) for each in requests)


def test_a_request_that_kills_the_process_repeatedly_is_rejected(tmp_path: Path) -> None:
    poison = make_request("poison", range(9), 4)
    lab = Lab(tmp_path, batch_size=4, poison=poison.prompt_token_ids)
    good = make_requests(3)
    seeds = [replace(poison.sampling, seed=i) for i in range(4)]
    again = [replace(poison, id=f"again {i}", sampling=sampling) for i, sampling in enumerate(seeds)]
    socket = lab.serve(
        submit(good[0], poison, good[1]),
        *pauses(40),
        *(submit(each) for each in again),
        submit(good[2]),
        *pauses(40),
    )
    for request in good:
        check_output(socket, request)
    (end,) = socket.outputs["poison"]
    assert end.error_kind == "request_failed"
    assert "2 times while running this request" in end.error_message
    for request in again:
        (end,) = socket.outputs[request.id]
        assert end.error_kind == "request_failed"
        assert "not run again" in end.error_message
    assert lab.generator.num_restarts == 2


def test_many_crashing_requests_do_not_stop_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=8, dies_after=[0] * 7)
    requests, last = make_requests(6), make_request("last")
    socket = lab.serve(submit(*requests), *pauses(60), submit(last), *pauses(20))
    assert [socket.outputs[each.id][-1].error_kind for each in requests] == ["request_failed"] * 6
    check_output(socket, last)
    assert lab.generator.num_restarts == 7


def _leave(*requests: Request) -> Turn:
    return [(CLIENT, Abort(each.id, AbortReason.CLIENT_LEFT)) for each in requests]


def _submit_and_leave_during_reload(request: Request) -> list[Turn]:
    return [submit(request), *pauses(4), _leave(request), *pauses(12)]


def test_a_crashing_request_whose_client_leaves_and_tries_again_is_rejected(tmp_path: Path) -> None:
    poison = make_request("poison", range(9), 4)
    lab = Lab(tmp_path, batch_size=1, poison=poison.prompt_token_ids, reload_polls=5)
    tries = [replace(poison, id=f"try {i}") for i in range(MAX_CRASHES)]
    socket = lab.serve(*(turn for each in tries for turn in _submit_and_leave_during_reload(each)))
    assert "try 0" not in socket.outputs
    assert (
        "2 times while running this request or an identical one" in socket.outputs["try 1"][-1].error_message
    )
    assert "crashed the generating process before" in socket.outputs["try 2"][-1].error_message
    assert lab.generator.num_restarts == 2


def test_a_request_is_not_blamed_for_a_crash_of_a_call_that_another_client_left(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=2, dies_after=[1, 3], reload_polls=5)
    first = make_requests(2)
    second = [replace(each, id=f"{each.id} again") for each in first]
    socket = lab.serve(
        submit(*first),
        *pauses(4),
        _leave(*first),
        *pauses(12),
        submit(*second),
        *pauses(2),
        _leave(second[0]),
        *pauses(30),
    )
    check_output(socket, second[1])
    assert lab.generator.batches == [["r0", "r1"], ["r0 again", "r1 again"], ["r1 again"]]


def test_a_request_is_not_blamed_for_a_call_that_it_was_not_in(tmp_path: Path) -> None:
    lab = Lab(
        tmp_path, batch_size=2, dies_after=[0], stuck_after=[None, 0], calls={0: ["r0"]}, reload_polls=5
    )
    stuck, request = make_requests(2)
    socket = lab.serve(
        *_submit_and_leave_during_reload(replace(request, id="before")),
        submit(stuck, request),
        *pauses(60),
    )
    assert socket.outputs["r0"][-1].error_kind == "deadline_exceeded"
    check_output(socket, request)
    assert lab.generator.batches == [["before"], ["r0", "r1"], ["r1"]]


def test_crashing_requests_whose_clients_leave_do_not_stop_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, dies_after=[0] * MAX_CRASHES, reload_polls=5)
    requests, last = make_requests(MAX_CRASHES), make_request("last")
    left = [turn for each in requests for turn in _submit_and_leave_during_reload(each)]
    socket = lab.serve(*left, submit(last), *pauses(20))
    check_output(socket, last)
    assert lab.generator.num_restarts == MAX_CRASHES


def test_crashes_with_good_batches_between_them_do_not_stop_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, dies_after=[1, None] * (MAX_CRASHES + 1))
    equal = make_request("", range(3), 4)
    requests = [replace(equal, id=f"r{i}") for i in range(MAX_CRASHES + 1)]
    socket = lab.serve(*(turn for each in requests for turn in (submit(each), *pauses(20))))
    for request in requests:
        check_output(socket, request)
    assert lab.generator.num_restarts == MAX_CRASHES + 1


def test_a_request_whose_rerun_differs_gets_an_error(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, dies_after=[2], forgets_after_restart=1)
    socket = lab.serve(
        submit(make_request("a", range(5), 6)), *pauses(40), submit(make_request("b")), *pauses(20)
    )
    *before, end = socket.outputs["a"]
    assert len(before) == 2
    assert end.error_kind == "request_failed"
    assert "generated different tokens than already sent" in end.error_message
    assert lab.generator.forgotten == ["a"]
    assert not any(output.error_kind for output in socket.outputs["b"])


def test_a_request_that_waits_for_its_rerun_can_be_aborted(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=3, dies_after=[1], reload_polls=3)
    requests = make_requests(3)
    socket = lab.serve(
        submit(*requests),
        [],
        [],
        [(CLIENT, Abort("r1", AbortReason.CLIENT_LEFT)), (CLIENT, GetStats(1))],
        *pauses(40),
    )
    assert lab.generator.batches[1:] == [["r0"], ["r2"]]
    assert read_stats(socket).gauges["lmi_requests_waiting"] == 2
    check_output(socket, requests[0])
    check_output(socket, requests[2])


def test_during_a_restart_the_board_reports_it_and_requests_are_rejected(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, dies_after=[1], reload_polls=3)
    states: list[tuple[EngineState, str]] = []
    set_state = lab.board.set_state

    def record(state: EngineState, reason: str = "") -> None:
        states.append((state, reason))
        set_state(state, reason)

    lab.board.set_state = record  # type: ignore[method-assign]
    early, late = make_request("early"), make_request("late")
    # The process computes in the second turn, dies in the third, and is polled three times from the fourth on.
    socket = lab.serve(submit(make_request("a")), [], [], submit(early), *pauses(5), submit(late), *pauses(9))
    assert states == [
        (EngineState.READY, ""),
        (EngineState.STARTING, "the generating process is being restarted: it was killed by SIGKILL"),
        (EngineState.READY, ""),
        (EngineState.DRAINING, ""),
    ]
    (refusal,) = socket.outputs["early"]
    assert refusal.error_kind == "unavailable"
    assert "being restarted" in refusal.error_message
    check_output(socket, late)


def test_a_process_that_dies_repeatedly_while_idle_stops_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, num_idle_crashes=MAX_CRASHES)
    with pytest.raises(
        EngineFailed, match="3 times, not caused by a request; the last time it was killed by"
    ):
        lab.serve(*pauses(30))
    assert lab.generator.num_restarts == MAX_CRASHES - 1


def test_a_batch_waits_for_a_process_that_died_while_idle(tmp_path: Path) -> None:
    lab = Lab(tmp_path, num_idle_crashes=1, reload_polls=5)
    request = make_request("a")
    socket = lab.serve(submit(request), *pauses(20))
    check_output(socket, request)


def test_a_process_that_does_not_become_ready_again_stops_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, dies_after=[0], reload_polls=1000)
    with pytest.raises(EngineFailed, match="it was not ready after 65 s"):
        lab.serve(submit(*make_requests(2)), *pauses(500))


# Batches that time out


def test_a_stuck_process_is_killed_at_the_timeout_and_restarted(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=2, stuck_after=[2])
    requests = make_requests(3)
    socket = lab.serve(submit(*requests), *pauses(60))
    for request in requests[:2]:
        end = socket.outputs[request.id][-1]
        assert end.error_kind == "deadline_exceeded"
        assert "30 s (option.predict_timeout); 2 tokens were generated" in end.error_message
    assert lab.generator.num_kills == 1
    check_output(socket, requests[2])
    assert lab.generator.left_at[1] >= 1000.0 + TIMEOUT + REACTION_SECONDS


def test_a_batch_that_was_paused_with_the_server_may_end(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=2)
    requests = make_requests(2)
    socket = lab.serve(submit(*requests), *pauses(40), jumps={2: 300.0})
    for request in requests:
        check_output(socket, request)
    assert lab.generator.num_kills == 0


def test_a_call_that_starts_later_has_a_timeout_of_its_own(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, step_seconds=10.0, calls={3: ["a"]})
    request = make_request("a", range(5), 6)
    socket = lab.serve(submit(request), *pauses(60))
    check_output(socket, request)
    assert lab.generator.num_kills == 0


def test_a_stuck_call_does_not_fail_the_rest_of_its_batch(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=2, stuck_after=[0], calls={0: ["r0"]})
    requests = make_requests(2)
    socket = lab.serve(submit(*requests), *pauses(60))
    assert socket.outputs["r0"][-1].error_kind == "deadline_exceeded"
    check_output(socket, requests[1])
    assert lab.generator.batches == [["r0", "r1"], ["r1"]]


def test_stuck_batches_whose_clients_disconnected_do_not_stop_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, stuck_after=[1] * (MAX_CRASHES + 1))
    script: list[Any] = []
    for number in range(MAX_CRASHES + 1):
        name = f"leaves{number}"
        script += [submit(make_request(name)), *pauses(2)]
        script += [[(CLIENT, Abort(name, AbortReason.CLIENT_LEFT))], *pauses(400)]
    last = make_request("stays")
    socket = lab.serve(*script, submit(last), *pauses(40))
    assert lab.generator.num_kills == MAX_CRASHES + 1
    check_output(socket, last)
