"""The dispatcher's loop with a fake generating process: batches, aborts, metrics and shutdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core import AbortReason, Request, SchedulerReply
from engines.health import EngineState
from engines.wire import (
    Abort,
    ConfigureScheduler,
    Drain,
    GetStats,
    Reply,
    Submit,
)
from tests.engines.mpi.fakes import CLIENT, make_request
from tests.engines.python.dispatch_lab import (
    INFO,
    TWO,
    Lab,
    check_output,
    make_requests,
    pauses,
    read_stats,
    submit,
)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_requests_of_all_clients_share_a_batch(lab: Lab) -> None:
    a, b = make_request("a", range(5), 6), make_request("b", [7], 1)
    socket = lab.serve(submit(a), submit(b, client=TWO))
    check_output(socket, a)
    check_output(socket, b)
    assert lab.generator.batches == [["a", "b"]]
    assert socket.owners == {"a": CLIENT, "b": TWO}
    assert [len(output.token_ids) for output in socket.outputs["a"]] == [1] * 6, "tokens are streamed"


def test_an_idle_dispatcher_sends_heartbeats(lab: Lab) -> None:
    socket = lab.serve(*pauses(3))
    assert socket.timeouts[:3] == [2.0] * 3
    assert lab.board.read().state is EngineState.DRAINING


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (make_request("x", range(70), 1), "71 in total, more than the limit of 64"),
        (make_request("x", [], 1), "at least one prompt token"),
        (make_request("x", [1], 0), "max_new_tokens of at least 1"),
        (make_request("r0"), "in use"),
    ],
)
def test_an_invalid_request_is_rejected_without_side_effects(lab: Lab, request_: Request, words: str) -> None:
    socket = lab.serve(
        submit(make_request("r0", range(9), 6)), *pauses(3), submit(request_, client=TWO), *pauses(20)
    )
    outputs = [message for client, message in socket.refusals if client == TWO]
    assert [output.error_kind for output in outputs] == ["invalid_request"]
    assert words in outputs[0].error_message
    assert lab.generator.batches == [["r0"]]


def test_a_full_queue_rejects_requests(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, max_waiting=1)
    a, b, c = make_requests(3)
    socket = lab.serve(submit(a, b, c), *pauses(10))
    check_output(socket, a)
    check_output(socket, b)
    assert [(output.id, output.error_kind) for _, output in socket.refusals] == [("r2", "overloaded")]


def test_requests_that_even_an_idle_server_has_no_room_for_are_invalid(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, max_waiting=1)
    requests = make_requests(5)
    socket = lab.serve(
        [(CLIENT, Submit(tuple(requests[:3]))), (CLIENT, Submit(tuple(requests[3:])))], *pauses(10)
    )
    for request in requests[3:]:
        check_output(socket, request)
    assert [(output.id, output.error_kind) for _, output in socket.refusals] == [
        (request.id, "too_many_outputs") for request in requests[:3]
    ]
    assert "at most 2, of which 1 run (batch_size) and 1 wait (job_queue_size)" in str(socket.refusals)


# Aborts


def test_an_aborted_request_is_dropped_from_the_queue_or_its_batch(lab: Lab) -> None:
    running, waiting = make_requests(4, tokens=8), make_request("waiting")
    socket = lab.serve(
        submit(*running, waiting),
        [],
        [
            (CLIENT, Abort("r1", AbortReason.CLIENT_LEFT)),
            (CLIENT, Abort("waiting", AbortReason.TIMEOUT)),
            (CLIENT, GetStats(1)),
        ],
        *pauses(20),
    )
    assert lab.generator.forgotten == ["r1"]
    assert lab.generator.batches == [["r0", "r1", "r2", "r3"]]
    assert not any(output.finished for output in socket.outputs.get("r1", []))
    assert "waiting" not in socket.outputs
    for request in (running[0], *running[2:]):
        check_output(socket, request)
    stats = read_stats(socket)
    assert (stats.gauges["lmi_requests_running"], stats.gauges["lmi_requests_waiting"]) == (3, 0)
    assert stats.counters["lmi_requests_aborted_total"] == 1
    assert stats.counters["lmi_requests_failed_total"] == 1, "the request that timed out"


def test_a_request_ended_by_a_stop_string_counts_as_finished(lab: Lab) -> None:
    stop = Abort("r0", AbortReason.STOP_SEQUENCE)
    socket = lab.serve(
        submit(*make_requests(4, tokens=20)),
        *pauses(4),
        [(CLIENT, stop)],
        [(CLIENT, GetStats(1))],
        *pauses(40),
    )
    assert lab.generator.forgotten == ["r0"]
    num_tokens = len(socket.tokens("r0"))
    assert 1 < num_tokens < 20
    stats = read_stats(socket)
    assert stats.counters["lmi_requests_finished_total"] == 1
    assert stats.counters["lmi_requests_aborted_total"] == 0
    (times,) = [h for h in stats.histograms if h.name == "lmi_time_per_output_token_seconds"]
    assert (sum(times.counts), times.sum) == (1, pytest.approx(lab.generator.step_seconds))


def test_a_client_cannot_abort_the_request_of_another(lab: Lab) -> None:
    request = make_request("a", range(4), 6)
    socket = lab.serve(
        submit(request),
        [(TWO, Abort("a", AbortReason.CLIENT_LEFT))],
        [(TWO, Abort("never was", AbortReason.CLIENT_LEFT))],
        *pauses(10),
    )
    check_output(socket, request)


def test_requests_of_an_exited_web_process_are_dropped(lab: Lab) -> None:
    staying = make_request("staying", range(4), 12)
    turns = [
        [
            *submit(make_request("a", range(4), 50), make_request("b", [1], 50)),
            *submit(staying, client=TWO),
        ],
        *pauses(4),
        [(TWO, GetStats(1))],
    ]
    socket = lab.serve(*turns, *pauses(20), gone={CLIENT})
    check_output(socket, staying)
    assert read_stats(socket).gauges["lmi_requests_running"] == 1
    assert read_stats(socket).counters["lmi_requests_aborted_total"] == 2


def test_waiting_requests_of_an_exited_web_process_are_dropped(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1)
    staying = make_request("staying", [1], 12)
    turns = [[*submit(staying, client=TWO), *submit(*make_requests(2))], *pauses(8), [(TWO, GetStats(1))]]
    socket = lab.serve(*turns, *pauses(20), gone={CLIENT})
    check_output(socket, staying)
    assert read_stats(socket).gauges["lmi_requests_waiting"] == 0


def test_scheduler_settings_are_not_supported(lab: Lab) -> None:
    socket = lab.serve([(CLIENT, ConfigureScheduler(7, {"max_waiting": 1}))])
    assert (CLIENT, Reply(7, SchedulerReply(None, {}))) in socket.sent


# Metrics


def test_stats_count_steps_tokens_and_requests(lab: Lab) -> None:
    a, b = make_request("a", range(5), 4), make_request("b", range(3), 2)
    socket = lab.serve(submit(a, b), *pauses(20), [(TWO, GetStats(77))])
    ((client, message),) = socket.sent
    assert isinstance(message, Reply)
    assert (client, message.token, message.content.info) == (TWO, 77, INFO)
    counters = message.content.counters
    assert counters["lmi_steps_total"] == 4
    assert counters["lmi_tokens_generated_total"] == 6
    assert counters["lmi_prompt_tokens_total"] == 8
    assert counters["lmi_requests_finished_total"] == 2
    assert counters["lmi_padding_tokens_total"] == 3
    assert counters["lmi_ended_row_tokens_total"] == 5
    assert not any(name.startswith("lmi_kv") for name in message.content.gauges)
    by_name = {h.name: h for h in message.content.histograms if not h.labels}
    assert (sum(by_name["lmi_batch_size"].counts), by_name["lmi_batch_size"].sum) == (1, 2)
    for name in ("lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"):
        assert sum(by_name[name].counts) == 2, name
    assert by_name["lmi_time_per_output_token_seconds"].sum == pytest.approx(2 * lab.generator.step_seconds)


# Shutdown


def test_drain_finishes_accepted_requests_and_rejects_new_ones(lab: Lab) -> None:
    requests = make_requests(6)
    socket = lab.serve(
        submit(*requests), [], [(TWO, Drain(60.0)), *submit(make_request("late"))], *pauses(40)
    )
    for request in requests:
        check_output(socket, request)
    (refusal,) = socket.outputs["late"]
    assert refusal.error_kind == "unavailable"
    assert "shutting down" in refusal.error_message
    assert lab.board.read().state is EngineState.DRAINING
    assert socket.script, "the drain ends when all requests have finished, not at its timeout"


def test_unfinished_requests_get_an_error_when_the_drain_times_out(lab: Lab) -> None:
    running, waiting = make_requests(4, tokens=40), make_request("waiting")
    socket = lab.serve(
        submit(*running), [], [*submit(waiting, client=TWO), (CLIENT, Drain(1.0))], *pauses(40)
    )
    for request in (*running, waiting):
        *before, end = socket.outputs[request.id]
        assert end.error_kind == "unavailable"
        assert "could not finish" in end.error_message
        assert not any(output.finished for output in before)
    assert socket.owners["waiting"] == TWO


def test_a_restart_while_draining_does_not_make_the_engine_ready(tmp_path: Path) -> None:
    lab = Lab(tmp_path, batch_size=1, dies_after=[2])
    requests = make_requests(2)
    socket = lab.serve(submit(*requests), [], [(CLIENT, Drain(60.0))], *pauses(40))
    check_output(socket, requests[0])
    check_output(socket, requests[1])
    assert lab.board.read().state is EngineState.DRAINING


def test_drain_of_an_idle_engine_ends_immediately(lab: Lab) -> None:
    socket = lab.serve([(CLIENT, Drain(60.0))])
    assert len(socket.timeouts) == 1
