"""The loop of rank 0 with a fake model: sending of outputs, isolation of failures, clients that disconnect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.core import AbortReason, SampledToken
from engines.errors import RequestFailed
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step_plan import PlanKind
from engines.sampling.batch import SamplingRow
from engines.wire import Abort, GetStats, Submit, ToEngine
from tests.engines.mpi.fakes import CLIENT, make_request
from tests.engines.mpi.leader_lab import POISON, TWO, Lab, check_output, read_stats, submit
from tests.support.logs import Logs


def test_requests_of_all_clients_are_served_together(lab: Lab) -> None:
    a, b, c = make_request("a", range(5), 6), make_request("b", range(20), 3), make_request("c", [7], 1)
    socket = lab.serve(submit(a), [], submit(b, client=TWO), submit(c))
    for request in (a, b, c):
        check_output(socket, request)
    assert socket.owners == {"a": CLIENT, "b": TWO, "c": CLIENT}
    assert sorted(lab.sampler.forgotten) == ["a", "b", "c"]


@pytest.mark.parametrize("long_step_seconds", [0.0, 1e9])
def test_tokens_are_sent_in_batches_except_the_first_and_last_of_a_request(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, long_step_seconds: float
) -> None:
    """Held tokens do not wait for a long step, whose prompts take time."""
    monkeypatch.setattr("engines.mpi.engine_core._LONG_STEP_SECONDS", long_step_seconds)
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 1e9)
    monkeypatch.setattr("engines.mpi.leader._MAX_PAUSE_SECONDS", 1e9)
    a, b = make_request("a", [1], 9), make_request("b", [2], 5)
    socket = lab.serve(submit(a), [], [], submit(b))
    assert socket.messages == [
        ["a"],
        *([["a", "a", "a", "b"]] if long_step_seconds else [["a", "a"], ["a", "b"]]),
        ["a", "b", "a", "b", "a", "b", "a", "b"],
        ["a"],
    ]
    for request in (a, b):
        check_output(socket, request)


def test_after_a_pause_tokens_are_sent_step_by_step(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 0.0)
    socket = lab.serve(submit(make_request("a", [1], 9)))
    assert socket.messages == [["a"]] * 9


def test_held_tokens_are_sent_when_no_work_is_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 1e9)
    monkeypatch.setattr("engines.mpi.leader._MAX_PAUSE_SECONDS", 1e9)
    abort = (CLIENT, Abort("a", AbortReason.CLIENT_LEFT))
    socket = lab.serve(submit(make_request("a", [1], 9)), [], [abort], [])
    assert socket.messages == [["a"], ["a"]]


def test_an_idle_engine_waits_for_messages_and_sends_heartbeats(lab: Lab) -> None:
    socket = lab.serve([], [], submit(make_request("a", [1], 3)))
    assert lab.executor.kinds[:3] == [PlanKind.BEAT, PlanKind.BEAT, PlanKind.STEP]
    assert socket.timeouts[:3] == [2.0, 2.0, 2.0]
    assert socket.timeouts[3] == 0.0, "a running engine does not wait"


def test_an_idle_engine_audits_its_blocks_once(lab: Lab, logs: Logs) -> None:
    lab.serve(submit(make_request("a", [1], 3)), *[[] for _ in range(6)])
    assert not logs.warnings
    request = make_request("holder", [1, 2], 3)
    holder = Sequence(request)
    assert lab.blocks.admit(holder, reserve=False)
    assert lab.blocks.extend(holder, 2)
    lab.core.add(make_request("b", [1], 1))
    for _ in range(6):
        lab.core.step()
    failed = [line for line in logs.messages if "the audit of the KV cache failed" in line]
    assert len(failed) == 1
    lab.blocks.release(holder)


# Isolation of failures


@pytest.mark.parametrize("poisoned", [{0}, {2}, {3}, {0, 3}], ids=str)
def test_requests_that_fail_their_step_are_isolated(lab: Lab, poisoned: set[int]) -> None:
    requests = [make_request(str(i), [POISON] if i in poisoned else range(i + 1), 5) for i in range(4)]
    socket = lab.serve(submit(*requests))
    for i, request in enumerate(requests):
        if i in poisoned:
            (end,) = socket.outputs[request.id]
            assert (end.error_kind, end.token_ids) == (RequestFailed.kind, ())
            assert end.error_message == "this request failed in the engine; the server's log has the details"
        else:
            check_output(socket, request)
    assert lab.executor.num_steps_tried < 20


def test_a_poison_in_a_later_chunk_does_not_disturb_running_requests(lab: Lab) -> None:
    """The poison is in the second chunk of its prompt, when the other requests are decoding."""
    good = [make_request(f"good {i}", range(i + 1), 8) for i in range(3)]
    poison = make_request("poison", [*range(20), POISON], 5)
    late = make_request("late", range(9), 4)
    socket = lab.serve(submit(*good), [], submit(poison), [], [], submit(late))
    assert socket.outputs["poison"][-1].error_kind == RequestFailed.kind
    for request in (*good, late):
        check_output(socket, request)


def test_a_request_that_fails_sampling_is_isolated(lab: Lab) -> None:
    good = [make_request(f"good {i}", range(i + 1), 5) for i in range(3)]
    lab.sampler.broken = {"bad"}
    socket = lab.serve(submit(good[0], make_request("bad"), *good[1:]))
    assert socket.outputs["bad"][-1].error_kind == RequestFailed.kind
    assert "divides" not in socket.outputs["bad"][-1].error_message, "internal details belong in the log"
    for request in good:
        check_output(socket, request)
    assert "bad" in lab.sampler.forgotten


def test_a_refusal_goes_only_to_the_client_that_sent_the_request(tmp_path: Path) -> None:
    lab = Lab(tmp_path, max_num_seqs=1, max_waiting=1)
    a, b, c = make_request("a", [1], 3), make_request("b", [2], 3), make_request("c", [3], 3)
    socket = lab.serve(submit(a, b, c), submit(make_request("long", range(70), 1), client=TWO))
    check_output(socket, a)
    check_output(socket, b)
    assert [o.error_kind for o in socket.outputs["c"]] == ["overloaded"]
    assert [o.error_kind for o in socket.outputs["long"]] == ["invalid_request"]
    assert socket.owners["long"] == TWO


def test_requests_that_even_an_idle_server_has_no_room_for_are_invalid(tmp_path: Path) -> None:
    lab = Lab(tmp_path, max_num_seqs=2, max_waiting=1)
    too_many = tuple(make_request(name, [1], 3) for name in "abcd")
    enough = tuple(make_request(name, [1], 3) for name in "efg")
    socket = lab.serve([(CLIENT, Submit(too_many)), (CLIENT, Submit(enough))])
    for request in too_many:
        (output,) = socket.outputs[request.id]
        assert output.error_kind == "too_many_outputs"
        assert "at most 3, of which 2 run at once" in output.error_message
    for request in enough:
        check_output(socket, request)


@pytest.mark.parametrize("reason", AbortReason)
def test_a_stop_sequence_counts_as_finished_and_a_timeout_as_failed(lab: Lab, reason: AbortReason) -> None:
    requests = submit(make_request("a", [5], 40), make_request("poison", [POISON]))
    socket = lab.serve(requests, [], [], [(CLIENT, Abort("a", reason)), (CLIENT, GetStats(1))])
    stats = read_stats(socket)
    counters = stats.counters
    finished, timed_out = reason is AbortReason.STOP_SEQUENCE, reason is AbortReason.TIMEOUT
    assert counters["lmi_requests_finished_total"] == finished
    assert counters["lmi_requests_aborted_total"] == (not finished and not timed_out)
    assert counters["lmi_requests_failed_total"] == 1 + timed_out
    assert counters["lmi_tokens_generated_total"] == 3
    (times,) = [h for h in stats.histograms if h.name == "lmi_time_per_output_token_seconds"]
    assert sum(times.counts) == finished
    assert (times.sum > 0) is finished


# Clients that disconnect


def test_an_aborted_request_gets_no_more_outputs_and_frees_its_blocks(lab: Lab) -> None:
    other = make_request("b", range(4), 6)
    socket = lab.serve(
        submit(make_request("a", range(30), 20), other),
        [],
        [],
        [(CLIENT, Abort("a", AbortReason.CLIENT_LEFT)), (CLIENT, GetStats(9))],
    )
    assert not any(output.finished for output in socket.outputs.get("a", []))
    check_output(socket, other)
    stats = read_stats(socket)
    assert stats.gauges["lmi_requests_running"] == 1
    held = -(-(4 + 6 - 1) // 4)
    assert stats.gauges["lmi_kv_blocks_free"] >= stats.gauges["lmi_kv_blocks_total"] - held
    assert "a" in lab.sampler.forgotten


def test_a_client_cannot_abort_the_request_of_another_client(lab: Lab) -> None:
    request = make_request("a", range(4), 6)
    socket = lab.serve(
        submit(request),
        [(TWO, Abort("a", AbortReason.CLIENT_LEFT))],
        [(TWO, Abort("never was", AbortReason.CLIENT_LEFT))],
    )
    check_output(socket, request)


def test_no_request_is_aborted_between_planning_and_computing_a_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a long step, held tokens are sent, and a web process may have disconnected."""
    monkeypatch.setattr("engines.mpi.engine_core._LONG_STEP_SECONDS", 0.0)
    monkeypatch.setattr("engines.mpi.leader._PAUSE_SECONDS", 1e9)
    monkeypatch.setattr("engines.mpi.leader._MAX_PAUSE_SECONDS", 1e9)
    gone: set[bytes] = set()
    forgotten_when_sampled: list[list[str]] = []
    sample = lab.sampler.sample

    def recording(logits: list[int], rows: list[SamplingRow]) -> list[SampledToken]:
        forgotten_when_sampled.extend([*lab.sampler.forgotten] for row in rows if row.id == "b")
        return sample(logits, rows)

    monkeypatch.setattr(lab.sampler, "sample", recording)

    def leave() -> Iterator[tuple[bytes, ToEngine]]:
        gone.add(TWO)
        yield from submit(c)

    a, b, c = make_request("a", [1], 9), make_request("b", [2], 9), make_request("c", [3], 3)
    script: list[Any] = [submit(a), submit(b, client=TWO), [], leave()]
    socket = lab.serve(*script, gone=gone)
    check_output(socket, a)
    check_output(socket, c)
    assert not any("b" in forgotten for forgotten in forgotten_when_sampled)
    assert lab.sampler.forgotten.count("b") == 1
    assert len(socket.outputs["b"]) < 9


def test_requests_of_a_disconnected_web_process_are_dropped(lab: Lab) -> None:
    staying = make_request("staying", range(4), 12)
    script = [
        [
            *submit(make_request("a", range(4), 50), make_request("b", range(5), 50)),
            *submit(staying, client=TWO),
        ],
        [],
        [],
        [(TWO, GetStats(1))],
    ]
    socket = lab.serve(*script, gone={CLIENT})
    check_output(socket, staying)
    assert read_stats(socket).gauges["lmi_requests_running"] == 1
    assert read_stats(socket).counters["lmi_requests_aborted_total"] == 2


def test_requests_without_an_output_are_dropped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.mpi.leader.CHECK_SECONDS", 0.0)
    lab = Lab(tmp_path, max_num_seqs=1)
    staying = make_request("staying", range(4), 12)
    waiting = submit(make_request("a"), make_request("b"))
    script = [[*submit(staying, client=TWO), *waiting], [], [], [(TWO, GetStats(1))]]
    socket = lab.serve(*script, gone={CLIENT})
    check_output(socket, staying)
    assert read_stats(socket).gauges["lmi_requests_waiting"] == 0
