"""Preemption with option.batch_scheduler_policy=max_utilization; queue limits, deadlines and reconfiguration."""

from __future__ import annotations

import pytest

from engines.core import RequestOutput
from engines.errors import Overloaded
from tests.engines.mpi.fakes import expected_output, make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab, counts, ids


def _tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def _optimistic_lab(**options: int) -> Lab:
    return Lab(policy="max_utilization", **options)


def test_more_requests_run_than_the_worst_case_allows() -> None:
    worst = [make_request(name, range(3), 30) for name in "abc"]
    reserving, optimistic = Lab(num_blocks=10), _optimistic_lab(num_blocks=10)
    for lab in (reserving, optimistic):
        for request in worst:
            lab.scheduler.add(request)
    assert ids(reserving.step()[0]) == ["a"]
    assert ids(optimistic.step()[0]) == ["a", "b", "c"]


def test_the_newest_request_is_preempted_and_resumes_where_it_stopped() -> None:
    lab = _optimistic_lab(num_blocks=6, max_num_seqs=4)
    requests = [make_request(name, [i, 1], 18) for i, name in enumerate("abc")]
    for request in requests:
        lab.scheduler.add(request)
    outputs: dict[str, list[RequestOutput]] = {}
    first_ended = ""
    while lab.scheduler.has_work:
        for output in lab.step()[1]:
            outputs.setdefault(output.id, []).append(output)
            if output.finished and not first_ended:
                first_ended = output.id
    assert first_ended == "a"
    assert lab.scheduler.num_preemptions >= 2
    assert lab.scheduler.num_recomputed_tokens > 0
    for request in requests:
        assert _tokens(outputs[request.id]) == expected_output(request)[0], "no token is repeated or missing"


def test_a_preempted_request_stays_ahead_of_later_ones() -> None:
    lab = _optimistic_lab(num_blocks=5, max_num_seqs=2)
    for i, name in enumerate("abcd"):
        lab.scheduler.add(make_request(name, [i] * 7, 12))
    while not lab.scheduler.num_preemptions:
        lab.step()
    order = []
    while lab.scheduler.has_work:
        step, _ = lab.step()
        order += [name for name in ids(step) if name not in order]
    assert order == ["a", "b", "c", "d"]


def test_guaranteed_no_evict_never_preempts() -> None:
    lab = Lab(num_blocks=6)
    for i in range(8):
        lab.scheduler.add(make_request(str(i), [i, 1], 10))
    lab.run()
    assert lab.scheduler.num_preemptions == 0


def test_a_request_that_needs_the_whole_cache_finishes() -> None:
    lab = _optimistic_lab(num_blocks=4)
    request = make_request("whole", range(9), 8)
    lab.scheduler.add(request)
    lab.scheduler.add(make_request("other", range(5), 6))
    assert _tokens(lab.run()["whole"]) == expected_output(request)[0]


def test_pages_found_in_the_cache_are_not_recomputed_after_preemption() -> None:
    """With prefix caching, a preempted request finds its own full pages unless they were evicted."""
    lab = _optimistic_lab(num_blocks=16, prefix_caching=True)
    for i, name in enumerate("abc"):
        lab.scheduler.add(make_request(name, [i] * 9, 14))
    lab.run()
    without = _optimistic_lab(num_blocks=16)
    for i, name in enumerate("abc"):
        without.scheduler.add(make_request(name, [i] * 9, 14))
    without.run()
    assert lab.scheduler.num_preemptions > 0
    assert lab.scheduler.num_recomputed_tokens < without.scheduler.num_recomputed_tokens
    assert lab.scheduler.num_prefix_hit_tokens == 0, "the prompts have no common prefix"


def test_aborting_a_preempted_request_in_the_queue_frees_everything() -> None:
    lab = _optimistic_lab(num_blocks=5, max_num_seqs=2)
    for i, name in enumerate("ab"):
        lab.scheduler.add(make_request(name, [i] * 7, 12))
    while not lab.scheduler.num_preemptions:
        lab.step()
    assert lab.scheduler.abort("b")
    lab.scheduler.check()
    assert lab.scheduler.num_queued_tokens == 0
    assert list(lab.run()) == ["a"]


# Queue limits, deadlines, reconfiguration


def test_queued_tokens_are_limited() -> None:
    lab = Lab(max_num_seqs=1, max_queued_tokens=20)
    lab.scheduler.add(make_request("running", range(4), 8))
    lab.step()
    lab.scheduler.add(make_request("long", range(30), 2))
    with pytest.raises(Overloaded, match=r"option\.max_queued_tokens") as refusal:
        lab.scheduler.add(make_request("more", range(3), 2))
    assert "30 tokens are already waiting" in str(refusal.value)
    lab.scheduler.abort("long")
    lab.scheduler.add(make_request("more", range(3), 2))
    assert lab.scheduler.num_queued_tokens == 3


def test_a_burst_on_an_idle_server_does_not_fill_the_queue() -> None:
    """Requests with a free place do not count as waiting, whatever their length. Both limits apply to the others."""
    lab = Lab(max_num_seqs=4, max_waiting=2, max_queued_tokens=40)
    for i in range(4):
        lab.scheduler.add(make_request(f"placed {i}", range(30), 2))
    lab.scheduler.add(make_request("queued", range(30), 2))
    with pytest.raises(Overloaded, match="30 tokens are already waiting") as refusal:
        lab.scheduler.add(make_request("large", range(11), 2))
    assert "option.max_queued_tokens" in str(refusal.value)
    lab.scheduler.add(make_request("small", range(10), 2))
    with pytest.raises(Overloaded, match="2 requests are already waiting"):
        lab.scheduler.add(make_request("one more", [1], 2))


def test_preempted_requests_do_not_fill_the_queue() -> None:
    """They were accepted before, and wait for the places that they lost."""
    lab = _optimistic_lab(num_blocks=5, max_num_seqs=2, max_waiting=1, max_queued_tokens=8)
    for i, name in enumerate("ab"):
        lab.scheduler.add(make_request(name, [i] * 7, 12))
    while not lab.scheduler.num_preemptions:
        lab.step()
    assert lab.scheduler.num_queued_tokens > 8
    lab.scheduler.add(make_request("c", [2] * 7, 2))
    with pytest.raises(Overloaded, match="1 requests are already waiting"):
        lab.scheduler.add(make_request("d", [3], 2))
    assert sorted(lab.run()) == ["a", "b", "c"]


def test_deadlines_end_waiting_and_running_requests() -> None:
    lab = Lab(max_num_seqs=2)
    for name, deadline in (("a", 5.0), ("b", 9.0), ("c", 6.0)):
        request = make_request(name, range(3), 20)
        lab.scheduler.add(request.__class__(**_fields(request), deadline=deadline))
    lab.step(now=1.0)
    assert lab.scheduler.expire(4.9) == []
    ended = lab.scheduler.expire(6.0)
    assert [(output.id, output.error_kind) for output in ended] == [
        ("a", "deadline_exceeded"),
        ("c", "deadline_exceeded"),
    ]
    assert "1 tokens were generated" in ended[0].error_message
    assert lab.scheduler.request_ids() == ["b"]
    assert lab.scheduler.expire(7.0) == []
    lab.scheduler.check()


def _fields(request: object) -> dict[str, object]:
    names = ("id", "prompt_token_ids", "sampling", "arrival_time")
    return {name: getattr(request, name) for name in names}


def test_settings_change_between_steps_without_losing_requests() -> None:
    from dataclasses import replace

    lab = Lab(max_num_seqs=4, max_prefill_tokens=64)
    requests = [make_request(str(i), [i, 2, 3], 9) for i in range(8)]
    outputs: dict[str, list[RequestOutput]] = {}

    def step() -> list[str]:
        planned, results = lab.step()
        for output in results:
            outputs.setdefault(output.id, []).append(output)
        return ids(planned)

    for request in requests:
        lab.scheduler.add(request)
    assert len(step()) == 4
    lab.scheduler.reconfigure(
        replace(lab.scheduler.settings, max_num_seqs=1, scheduling_policy="priority", chunked_prefill=False)
    )
    assert len(step()) == 4, "running requests continue"
    sizes = [len(step()) for _ in range(9)]
    assert sizes[-1] == 1
    lab.scheduler.reconfigure(replace(lab.scheduler.settings, max_num_seqs=3, scheduling_policy="fair"))
    while lab.scheduler.has_work:
        step()
    for request in requests:
        assert _tokens(outputs[request.id]) == expected_output(request)[0]


def test_the_tokens_of_a_step_are_limited() -> None:
    lab = Lab(max_num_seqs=8, max_prefill_tokens=16, max_num_batched_tokens=5)
    for i in range(8):
        lab.scheduler.add(make_request(str(i), [i, 2, 3], 9))
    while lab.scheduler.has_work:
        assert sum(counts(lab.step()[0])) <= 5
