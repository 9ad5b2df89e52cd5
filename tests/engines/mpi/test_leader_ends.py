"""The loop of rank 0: stats, warm-up, drain."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core import AbortReason
from engines.errors import RequestFailed
from engines.health import EngineState
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step_plan import PlanKind
from engines.mpi.worker import warm_up
from engines.wire import Abort, Drain, GetStats, Reply
from tests.engines.mpi.fakes import CLIENT, ScriptedSocket, expected_output, make_request
from tests.engines.mpi.leader_lab import INFO, POISON, TWO, Lab, check_output, read_stats, submit
from tests.support.logs import Logs


def test_stats_report_steps_tokens_and_blocks(lab: Lab) -> None:
    a, b = make_request("a", range(5), 4), make_request("b", range(3), 4)
    socket = lab.serve(submit(a, b), [], [], [], [(TWO, GetStats(77))])
    ((client, message),) = socket.sent
    assert isinstance(message, Reply)
    assert (client, message.token) == (TWO, 77)
    assert message.content.info == INFO
    counters, gauges = message.content.counters, message.content.gauges
    assert counters["lmi_steps_total"] == 4
    assert counters["lmi_tokens_generated_total"] == 8
    assert counters["lmi_prompt_tokens_total"] == 8
    assert counters["lmi_requests_finished_total"] == 2
    assert (gauges["lmi_requests_running"], gauges["lmi_requests_waiting"]) == (0, 0)
    assert gauges["lmi_kv_blocks_free"] == gauges["lmi_kv_blocks_total"] == 64
    assert gauges["lmi_kv_blocks_cached"] == 0
    by_name = {h.name: h for h in message.content.histograms if not h.labels}
    assert (sum(by_name["lmi_batch_size"].counts), by_name["lmi_batch_size"].sum) == (4, 8)
    for name in ("lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"):
        assert sum(by_name[name].counts) == 2, name
    assert {h.labels["part"] for h in message.content.histograms if h.labels} >= {
        "schedule",
        "sample",
        "update",
    }


@pytest.mark.parametrize(
    ("paged", "blocks_used"), [(True, [2, 2, 2, 2, 3, 3, 3, 0]), (False, [3, 3, 3, 3, 3, 3, 3, 0])]
)
def test_gauges_of_the_kv_cache_follow_a_request_token_by_token(
    paged: bool, blocks_used: list[int], tmp_path: Path
) -> None:
    """There are 64 blocks of 4 slots. The first step caches the prompt of 5 tokens, each further step a token."""
    lab = Lab(tmp_path, paged)
    socket = lab.serve(submit(make_request("a", range(5), 8)), *[[(CLIENT, GetStats(n))] for n in range(8)])
    seen = [message.content.gauges for _, message in socket.sent if isinstance(message, Reply)]
    assert len(seen) == len(blocks_used)
    for gauges, blocks, tokens in zip(seen, blocks_used, [5, 6, 7, 8, 9, 10, 11, 0], strict=True):
        found = {name: value for name, value in gauges.items() if name.startswith("lmi_kv_")}
        assert found == {
            "lmi_kv_blocks_total": 64,
            "lmi_kv_blocks_free": 64 - blocks,
            "lmi_kv_blocks_cached": 0,
            "lmi_kv_slots_total": 256,
            "lmi_kv_slots_unfilled": 4 * blocks - tokens,
            "lmi_kv_use": blocks / 64,
            "lmi_kv_waste": (4 * blocks - tokens) / (4 * blocks) if blocks else 0,
        }


# Warm-up and drain


def test_the_warm_up_leaves_no_blocks_and_no_counts(lab: Lab) -> None:
    warm_up(lab.core, make_request("warm-up", range(8), 2))
    assert lab.executor.kinds == [PlanKind.STEP, PlanKind.STEP]
    assert lab.blocks.num_free == lab.blocks.num_blocks
    socket = lab.serve([(CLIENT, GetStats(1))])
    assert set(read_stats(socket).counters.values()) == {0}


@pytest.mark.parametrize("failing", ["the model", "sampling", "numbers"])
def test_a_failing_warm_up_raises(lab: Lab, failing: str) -> None:
    lab.sampler.broken = {"warm-up"} if failing == "sampling" else set()
    lab.sampler.not_finite = {"warm-up"} if failing == "numbers" else set()
    prompt = [POISON] if failing == "the model" else [1, 2]
    with pytest.raises(RequestFailed, match="the warm-up failed"):
        warm_up(lab.core, make_request("warm-up", prompt, 2))


def test_drain_finishes_accepted_requests_and_refuses_new_ones(lab: Lab) -> None:
    running = [make_request(f"r{i}", range(i + 1), 10) for i in range(4)]
    waiting = make_request("waiting", range(3), 5)
    socket = lab.serve(
        submit(*running, waiting),
        [(TWO, Drain(60.0)), *submit(make_request("late"))],
        submit(make_request("later"), client=TWO),
    )
    for request in (*running, waiting):
        check_output(socket, request)
    for name in ("late", "later"):
        (refusal,) = socket.outputs[name]
        assert refusal.error_kind == "unavailable"
        assert "shutting down" in refusal.error_message
    assert lab.board.read().state is EngineState.DRAINING


def test_a_drain_does_not_wait_for_ended_requests(lab: Lab, logs: Logs) -> None:
    requests = [make_request("a", [1], 2), make_request("bad", [POISON]), make_request("left", [2], 40)]
    socket = lab.serve(submit(*requests), [(CLIENT, Abort("left", AbortReason.CLIENT_LEFT))], [], [], [])
    assert len(socket.timeouts) == 6, "nothing is received after the drain"
    assert "draining: waiting at most 60 s; unfinished requests: 0" in logs.messages


def test_a_failed_audit_during_the_drain_is_logged_and_the_ranks_stop(lab: Lab, logs: Logs) -> None:
    """The drain has succeeded, so the exit code must not report a failure of the engine."""
    holder = Sequence(make_request("holder", [1, 2], 3))
    assert lab.blocks.admit(holder, reserve=False)
    holder.block_table.append(99)
    socket = ScriptedSocket([submit(make_request("a", [1], 3)), [(CLIENT, Drain(60.0))]])
    lab.lead(socket)
    check_output(socket, make_request("a", [1], 3))
    assert lab.executor.kinds[-1] is PlanKind.STOP
    assert "the audit of the KV cache failed" in logs.text


def test_requests_that_do_not_finish_before_the_drain_timeout_get_an_error(lab: Lab) -> None:
    running = [make_request(f"r{i}", range(i + 1), 40) for i in range(4)]
    waiting = make_request("waiting", range(3), 5)
    socket = lab.serve(submit(*running), [], [*submit(waiting, client=TWO), (CLIENT, Drain(0.0))])
    for request in (*running, waiting):
        *before, end = socket.outputs[request.id]
        assert end.error_kind == "unavailable"
        assert "could not finish" in end.error_message
        assert not any(output.finished for output in before)
        assert socket.tokens(request.id) == expected_output(request)[0][: len(before)]
    assert socket.owners["waiting"] == TWO
