"""The rules of the scheduler, one by one. Random streams of requests are in test_property_steps.py."""

from __future__ import annotations

import pytest

from engines.core import FinishReason, RequestOutput, SampledToken
from engines.errors import InvalidRequest, Overloaded, RequestFailed
from tests.engines.mpi.fakes import NUM_IDS, expected_output, make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab, counts, ids


@pytest.mark.parametrize("paged", [True, False])
def test_a_new_request_joins_the_next_step_beside_running_requests(paged: bool) -> None:
    lab = Lab(paged)
    lab.scheduler.add(make_request("old", range(5), 10))
    lab.step()
    lab.step()
    lab.scheduler.add(make_request("new", range(7), 10))
    step, outputs = lab.step()
    assert ids(step) == ["old", "new"]
    assert counts(step) == [1, 7]
    assert [output.id for output in outputs] == ["old", "new"]


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


def test_the_last_token_of_a_prompt_counts_as_prefill() -> None:
    """A chunk of one token is not a decode: it uses the prefill budget like any other chunk."""
    lab = Lab(max_prefill_tokens=8)
    lab.scheduler.add(make_request("nine", range(9), 2))
    lab.step()
    lab.scheduler.add(make_request("eight", range(8), 2))
    step, _ = lab.step()
    assert ids(step) == ["nine", "eight"]
    assert counts(step) == [1, 7]


def test_prompts_share_the_prefill_budget_in_order_of_arrival() -> None:
    lab = Lab(max_prefill_tokens=8)
    for name, length in (("a", 3), ("b", 4), ("c", 5), ("d", 2)):
        lab.scheduler.add(make_request(name, range(length), 2))
    first, _ = lab.step()
    assert list(zip(ids(first), counts(first), strict=True)) == [("a", 3), ("b", 4), ("c", 1)]
    second, _ = lab.step()
    assert list(zip(ids(second), counts(second), strict=True)) == [("a", 1), ("b", 1), ("c", 4), ("d", 2)]


def test_no_request_overtakes_the_head_of_the_queue() -> None:
    lab = Lab(num_blocks=4, max_prefill_tokens=64)
    lab.scheduler.add(make_request("running", range(4), 5))  # 2 of 4 blocks
    lab.step()
    lab.scheduler.add(make_request("large", range(8), 5))  # 3 blocks: must wait
    lab.scheduler.add(make_request("small", range(2), 2))  # 1 block, which is free
    step, _ = lab.step()
    assert ids(step) == ["running"]
    assert lab.scheduler.num_waiting == 2


def test_a_static_batch_admits_no_request_before_it_ends() -> None:
    lab = Lab(policy="static_batch", max_num_seqs=3, max_prefill_tokens=8)
    for name, new in (("a", 2), ("b", 6), ("c", 2), ("later", 1)):
        lab.scheduler.add(make_request(name, range(6), new))
    joined = [set(ids(lab.step()[0])) for _ in range(7)]
    assert joined[0] == {"a", "b"}, "the prompts of a batch may fill several steps"
    assert joined[1] == {"a", "b", "c"}
    assert joined[-1] == {"b"}
    assert ids(lab.step()[0]) == ["later"]


def test_a_static_batch_does_not_wait_to_fill() -> None:
    lab = Lab(policy="static_batch")
    lab.scheduler.add(make_request("early", range(3), 3))
    assert ids(lab.step()[0]) == ["early"]
    lab.scheduler.add(make_request("newcomer", range(3), 3))
    assert [ids(lab.step()[0]) for _ in range(3)] == [["early"], ["early"], ["newcomer"]]


def test_at_most_max_num_seqs_requests_run() -> None:
    lab = Lab(max_num_seqs=2, max_prefill_tokens=64)
    for name in "abc":
        lab.scheduler.add(make_request(name, range(3), 2))
    assert ids(lab.step()[0]) == ["a", "b"]
    assert (lab.scheduler.num_running, lab.scheduler.num_waiting) == (2, 1)
    assert ids(lab.step()[0]) == ["a", "b"]
    assert ids(lab.step()[0]) == ["c"]


@pytest.mark.parametrize("paged", [True, False])
def test_eos_ends_a_request_and_frees_its_blocks(paged: bool) -> None:
    lab = Lab(paged)
    free = make_request("free", range(6), 12)
    tokens, _ = expected_output(free)
    stopped = make_request("stopped", range(6), 12, stop=[tokens[3]])
    expected, reason = expected_output(stopped)
    lab.scheduler.add(stopped)
    outputs = lab.run()["stopped"]
    assert [token for output in outputs for token in output.token_ids] == expected
    assert outputs[-1].finish_reason is reason is FinishReason.EOS_TOKEN
    assert all(output.finish_reason is None for output in outputs[:-1])
    assert lab.blocks.num_free == lab.blocks.num_blocks


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


def test_without_requests_there_is_no_step() -> None:
    lab = Lab()
    assert lab.scheduler.schedule() is None
    assert not lab.scheduler.has_work


def test_a_full_queue_refuses_requests_and_names_the_option() -> None:
    lab = Lab(max_num_seqs=1, max_waiting=2)
    for name in "abc":  # "a" has a place in the next step
        lab.scheduler.add(make_request(name, max_new_tokens=1))
    with pytest.raises(Overloaded, match="2 requests are already waiting") as refusal:
        lab.scheduler.add(make_request("d"))
    assert "job_queue_size" in str(refusal.value)
    lab.step()  # "a" has ended
    lab.scheduler.add(make_request("d"))
    assert lab.scheduler.request_ids() == ["b", "c", "d"]


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


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 2, 4], ids=["waiting", "first chunk", "second chunk", "decoding"])
def test_abort_frees_everything_at_any_time(paged: bool, steps: int) -> None:
    lab = Lab(paged, max_prefill_tokens=8)
    lab.scheduler.add(make_request("a", range(20), 10))
    for _ in range(steps):
        lab.step()
    assert lab.scheduler.abort("a")
    assert not lab.scheduler.abort("a")
    assert not lab.scheduler.has_work
    assert lab.blocks.num_free == lab.blocks.num_blocks
    assert lab.scheduler.request_ids() == []


def test_a_non_finite_output_fails_only_its_request() -> None:
    lab = Lab()
    good = make_request("good", range(3), 4)
    for request in (make_request("bad", range(6), 4), good):
        lab.scheduler.add(request)
    step = lab.scheduler.schedule()
    assert step is not None
    tokens = lab.model.sample(step)
    bad, first = lab.scheduler.update(step, [SampledToken(0, finite=False), tokens[1]], 0.0)
    assert (bad.error_kind, bad.token_ids) == (RequestFailed.kind, ())
    assert "not finite" in bad.error_message
    rest = lab.run()["good"]
    assert [*first.token_ids, *(t for o in rest for t in o.token_ids)] == expected_output(good)[0]
    assert lab.blocks.num_free == lab.blocks.num_blocks


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


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_halves_of_a_step_have_its_tokens_without_state_changes(count: int) -> None:
    """The leader halves a step that failed. Its changes to the state of the ranks must not be applied again."""
    lab = Lab()
    for i in range(count):
        lab.scheduler.add(make_request(str(i), range(i + 1), 2))
    step = lab.scheduler.schedule()
    assert step is not None
    first, second = step.halves()
    assert first.sequences
    assert second.sequences
    assert first.sequences + second.sequences == step.sequences
    for half in (first, second):
        assert not (*half.plan.table_updates, *half.plan.copies)
    together = lab.model.run(step.plan)
    assert lab.model.run(first.plan) + lab.model.run(second.plan) == together
