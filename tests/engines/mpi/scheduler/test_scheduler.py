"""The rules of the scheduler, one by one. Random streams of requests are in test_property_steps.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core import FinishReason, RequestOutput, SampledToken, SchedulerSettings
from engines.errors import InvalidRequest, Overloaded, RequestFailed
from engines.mpi.scheduler.request_check import check_together
from tests.engines.mpi.fakes import NUM_IDS, expected_output, make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab, counts, ids


def test_a_long_prompt_is_split_into_chunks_while_others_decode() -> None:
    lab = Lab(max_prefill_tokens=8)
    lab.scheduler.add(make_request("old", [1], 10))
    lab.step()
    lab.scheduler.add(make_request("long", range(20), 2))
    steps = [lab.step() for _ in range(4)]
    assert [counts(step) for step, _ in steps] == [[1, 8], [1, 8], [1, 4], [1, 1]]
    assert [[output.id for output in outputs] for _, outputs in steps] == [
        ["old"],
        ["old"],
        ["old", "long"],
        ["old", "long"],
    ]


def test_prompts_share_the_prefill_budget_in_order_of_arrival() -> None:
    lab = Lab(max_prefill_tokens=8)
    for name, length in (("a", 3), ("b", 4), ("c", 5), ("d", 2)):
        lab.scheduler.add(make_request(name, range(length), 2))
    first, _ = lab.step()
    assert list(zip(ids(first), counts(first), strict=True)) == [("a", 3), ("b", 4), ("c", 1)]
    second, _ = lab.step()
    assert list(zip(ids(second), counts(second), strict=True)) == [("a", 1), ("b", 1), ("c", 4), ("d", 2)]


def test_a_static_batch_admits_no_request_before_it_ends() -> None:
    lab = Lab(policy="static_batch", max_num_seqs=3, max_prefill_tokens=8)
    for name, new in (("a", 2), ("b", 6), ("c", 2), ("later", 1)):
        lab.scheduler.add(make_request(name, range(6), new))
    joined = [set(ids(lab.step()[0])) for _ in range(7)]
    assert joined[0] == {"a", "b"}, "the prompts of a batch may fill several steps"
    assert joined[1] == {"a", "b", "c"}
    assert joined[-1] == {"b"}
    assert ids(lab.step()[0]) == ["later"]


def test_log_probabilities_are_returned() -> None:
    lab = Lab()
    lab.scheduler.add(make_request("a", [1], 1))
    step = lab.scheduler.schedule()
    assert step is not None
    (output,) = lab.scheduler.update(step, [SampledToken(5, logprob=-0.25)], 1.0)
    assert output == RequestOutput("a", (5,), (-0.25,), finish_reason=FinishReason.LENGTH)


def test_the_first_token_time_comes_from_the_caller() -> None:
    lab = Lab(max_prefill_tokens=2)
    lab.scheduler.add(make_request("a", range(3), 3))
    (sequence,) = lab.step(now=7.0)[0].sequences
    assert sequence.first_token_time is None
    lab.step(now=8.0)
    lab.step(now=9.0)
    assert sequence.first_token_time == 8.0


@pytest.mark.parametrize(("num_blocks", "limit"), [(64, 64), (8, 33)], ids=["max_model_len", "cache size"])
def test_a_request_that_can_never_fit_is_refused_with_the_limits(num_blocks: int, limit: int) -> None:
    lab = Lab(num_blocks=num_blocks)
    lab.scheduler.add(make_request("fits", range(10), limit - 10))
    with pytest.raises(InvalidRequest) as refusal:
        lab.scheduler.add(make_request("too long", range(11), limit - 10))
    for number in (11, limit - 10, limit + 1, limit):
        assert str(number) in str(refusal.value)
    assert "max_new_tokens" in str(refusal.value)
    assert len(lab.run()["fits"]) == limit - 10


def test_a_prompt_may_fill_the_whole_cache() -> None:
    """No blocks are left free for the growth of others while nothing runs."""
    lab = Lab(num_blocks=200, max_prefill_tokens=800, max_model_len=801, policy="max_utilization")
    lab.scheduler.add(make_request("whole", [1] * 800, 1))
    assert len(lab.run()["whole"]) == 1


@pytest.mark.parametrize("token_id", [NUM_IDS, 2**40, -1])
def test_a_token_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    """A tokenizer with added tokens can be larger than the vocabulary of the model."""
    lab = Lab(prefix_caching=True)
    with pytest.raises(InvalidRequest) as refusal:
        lab.scheduler.add(make_request("a", [5, 6, token_id, *range(9)], 3))
    for words in (f"token id {token_id} at position 2", f"vocabulary of {NUM_IDS} tokens", "tokenizer"):
        assert words in str(refusal.value)
    assert not lab.scheduler.has_work
    lab.scheduler.add(make_request("a", [0, NUM_IDS - 1], 3))
    assert len(lab.run()["a"]) == 3


@pytest.mark.parametrize(("prompt", "new"), [((), 3), ((1, 2), 0)])
def test_an_empty_prompt_or_output_is_refused(prompt: tuple[int, ...], new: int) -> None:
    with pytest.raises(InvalidRequest, match="at least one prompt token and max_new_tokens of at least 1"):
        Lab().scheduler.add(make_request("a", prompt, new))


def test_an_id_in_use_is_refused_and_can_be_reused_later() -> None:
    lab = Lab()
    lab.scheduler.add(make_request("a", [1], 1))
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        lab.scheduler.add(make_request("a", [2], 1))
    lab.run()
    lab.scheduler.add(make_request("a", [2], 1))
    assert lab.run()["a"][0].token_ids == tuple(expected_output(make_request("a", [2], 1))[0])


def test_failing_is_idempotent() -> None:
    lab = Lab()
    lab.scheduler.add(make_request("a"))
    step = lab.scheduler.schedule()
    assert step is not None
    error = RequestFailed("broken")
    assert lab.scheduler.fail(step.sequences, error) == [
        RequestOutput("a", error_kind="request_failed", error_message="broken")
    ]
    assert lab.scheduler.fail(step.sequences, error) == []


def test_the_oldest_request_is_not_preempted() -> None:
    lab = Lab(policy="max_utilization", num_blocks=6)
    for i, name in enumerate("abc"):
        lab.scheduler.add(make_request(name, [i, 1], 18))
    ended = []
    while lab.scheduler.has_work:
        ended += [output.id for output in lab.step()[1] if output.finished]
    assert ended[0] == "a"
    assert lab.scheduler.num_preemptions >= 2


def test_pages_found_in_the_cache_are_not_recomputed_after_preemption() -> None:
    """With prefix caching, a preempted request finds its own full pages unless they were evicted."""
    lab, without = (
        Lab(policy="max_utilization", num_blocks=16, prefix_caching=caching) for caching in (True, False)
    )
    for one in (lab, without):
        for i, name in enumerate("abc"):
            one.scheduler.add(make_request(name, [i] * 9, 14))
        one.run()
    assert lab.scheduler.num_preemptions > 0
    assert lab.scheduler.num_recomputed_tokens < without.scheduler.num_recomputed_tokens
    assert lab.scheduler.num_prefix_hit_tokens == 0, "the prompts have no common prefix"


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
    with pytest.raises(Overloaded, match=r"2 requests are already waiting \(job_queue_size\)"):
        lab.scheduler.add(make_request("one more", [1], 2))


def test_requests_of_one_http_request_are_invalid_if_an_idle_server_refuses_them() -> None:
    settings = SchedulerSettings(2, 64, 64, max_waiting=2, max_queued_tokens=40)
    requests = tuple(make_request(str(number), range(20), 2) for number in range(5))
    check_together(requests[:4], settings)
    with pytest.raises(InvalidRequest, match=r"accepted: at most 4, .* 2 wait \(job_queue_size\)"):
        check_together(requests, settings)
    check_together(requests[:3], replace(settings, max_queued_tokens=1))
    with pytest.raises(InvalidRequest, match=r"at most 39 tokens \(option.max_queued_tokens\)"):
        check_together(requests[:4], replace(settings, max_queued_tokens=39))
    for limit, accepted in ((40, 4), (39, 3), (1, 3)):
        lab = Lab(max_num_seqs=2, max_waiting=2, max_queued_tokens=limit)
        for request in requests[:accepted]:
            lab.scheduler.add(request)
        with pytest.raises(Overloaded):
            lab.scheduler.add(requests[accepted])


def test_deadlines_of_ended_requests_are_forgotten() -> None:
    lab = Lab()
    lab.scheduler.add(replace(make_request("first", range(3), 5), deadline=9.0))
    for number in range(500):
        name = f"r{number}"
        lab.scheduler.add(replace(make_request(name, range(3), 5), deadline=1e9))
        lab.scheduler.abort(name)
    assert len(lab.scheduler._deadlines) < 100
    assert [output.id for output in lab.scheduler.expire(9.0)] == ["first"]


def test_deadlines_end_waiting_and_running_requests() -> None:
    lab = Lab(max_num_seqs=2)
    for name, deadline in (("a", 5.0), ("b", 9.0), ("c", 6.0)):
        lab.scheduler.add(replace(make_request(name, range(3), 20), deadline=deadline))
    lab.step(now=1.0)
    assert lab.scheduler.expire(4.9) == []
    ended = lab.scheduler.expire(6.0)
    assert [(output.id, output.error_kind) for output in ended] == [
        ("a", "deadline_exceeded"),
        ("c", "deadline_exceeded"),
    ]
    assert "1 token was generated" in ended[0].error_message
    assert lab.scheduler.request_ids() == ["b"]
    assert lab.scheduler.expire(7.0) == []
    lab.scheduler.check()


@pytest.mark.parametrize("policy", ["max_utilization", "guaranteed_no_evict", "static_batch"])
def test_requests_that_cannot_use_a_free_place_count_as_waiting(policy: str) -> None:
    """All blocks are in use, or a static batch runs, so a place is of no use."""
    lab = Lab(
        num_blocks=16,
        max_num_seqs=8,
        max_waiting=2,
        max_prefill_tokens=64,
        max_queued_tokens=50,
        policy=policy,
        prefix_caching=False,
    )
    for name in ("running", "head"):
        lab.scheduler.add(make_request(name, range(40), 8))
        lab.step()
    with pytest.raises(Overloaded, match="40 tokens are already waiting"):
        lab.scheduler.add(make_request("large", range(20), 8))
    lab.scheduler.add(make_request("small", range(4), 8))
    with pytest.raises(Overloaded, match="2 requests are already waiting"):
        lab.scheduler.add(make_request("one more", [1], 2))
    lab.run()
    for i in range(8):
        lab.scheduler.add(make_request(f"placed {i}", range(40), 8))


def test_requests_count_as_waiting_once_the_running_ones_use_all_tokens_of_a_step() -> None:
    """With chunked prefill, two sequences fill a step of two tokens, so the other six places are of no use."""
    lab = Lab(max_num_seqs=8, max_num_batched_tokens=2, max_waiting=1)
    for name in "ab":
        lab.scheduler.add(make_request(name, [1], 40))
    lab.step()
    lab.scheduler.add(make_request("c", [1], 40))
    with pytest.raises(Overloaded, match="1 requests are already waiting"):
        lab.scheduler.add(make_request("d", [1], 40))
    lab.scheduler.abort("a")
    lab.scheduler.add(make_request("d", [1], 40))


def test_a_step_full_of_one_long_prompt_leaves_the_other_places_free() -> None:
    lab = Lab(max_num_seqs=8, max_num_batched_tokens=8, max_prefill_tokens=8, max_waiting=1)
    lab.scheduler.add(make_request("long", range(40), 2))
    lab.step()
    for i in range(8):
        lab.scheduler.add(make_request(f"placed or first to wait {i}", [1], 2))
    with pytest.raises(Overloaded):
        lab.scheduler.add(make_request("one more", [1], 2))


@pytest.mark.parametrize("order", [("running", "head"), ("head", "running")])
def test_a_sequence_that_lacked_blocks_does_not_outlive_its_abortion(order: tuple[str, str]) -> None:
    lab = Lab(num_blocks=16, max_num_seqs=8, max_waiting=1, max_prefill_tokens=64, policy="max_utilization")
    for name in ("running", "head"):
        lab.scheduler.add(make_request(name, range(40), 8))
    lab.step()
    assert lab.scheduler.num_free_places == 0
    for name in order:
        lab.scheduler.abort(name)
    assert lab.scheduler.num_free_places == 8
    for i in range(8):
        lab.scheduler.add(make_request(f"placed {i}", range(40), 8))
