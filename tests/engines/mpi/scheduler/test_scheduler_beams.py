"""Beam search in the scheduler: the result equals that of a search that runs alone, and all blocks are freed."""

from __future__ import annotations

import random
from collections.abc import Sequence as AnySequence
from dataclasses import replace

import pytest

from engines.core import FinishReason, Request, RequestOutput
from engines.errors import InvalidRequest, Overloaded, RequestFailed
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.scheduler.request_check import check_together
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.fakes import expected_output, make_request
from tests.engines.mpi.scheduler.beams_lab import BeamModel, beam_request, expected_beam_result
from tests.engines.mpi.scheduler.scheduler_lab import BLOCK_SIZE, Lab


def _lab(**options: object) -> Lab:
    lab = Lab(**options)  # type: ignore[arg-type]
    lab.model = BeamModel(BLOCK_SIZE)
    return lab


def _run(lab: Lab, arrivals: list[Request], aborts: AnySequence[str] = ()) -> dict[str, list[RequestOutput]]:
    """Add one request before each step. Requests in `aborts` are aborted two steps later."""
    outputs: dict[str, list[RequestOutput]] = {}
    arrivals, leaving = arrivals[::-1], []
    for _ in range(2000):
        if arrivals:
            request = arrivals.pop()
            lab.scheduler.add(request)
            leaving.append(request.id)
            if len(leaving) > 2 and leaving[-3] in aborts:
                lab.scheduler.abort(leaving[-3])
        if not lab.scheduler.has_work:
            break
        step = lab.scheduler.schedule()
        assert step is not None
        assert min(step.plan.query_lens) > 0
        assert step.plan.num_tokens <= lab.scheduler.settings.max_num_batched_tokens
        assert lab.scheduler.num_running <= lab.scheduler.settings.max_num_seqs
        for output in lab.scheduler.update(step, lab.model.sample(step), 0.0):
            outputs.setdefault(output.id, []).append(output)
        lab.scheduler.check()
    assert not lab.scheduler.has_work
    assert lab.blocks.num_used == 0
    return outputs


def _check_result(request: Request, outputs: list[RequestOutput]) -> None:
    if request.sampling.num_beams == 1:
        tokens, reason = expected_output(request)
        assert [token for output in outputs for token in output.token_ids] == tokens
        assert outputs[-1].finish_reason is reason
        return
    best = expected_beam_result(request)
    assert len(outputs) == 1
    assert outputs[0].token_ids == best.token_ids
    assert outputs[0].finish_reason is best.finish_reason
    assert not outputs[0].error_kind


def _random_request(name: str, numbers: random.Random) -> Request:
    shared = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    prompt = shared[: numbers.randrange(1, 10)] + [numbers.randrange(32)] * numbers.randrange(3)
    stop = tuple(range(numbers.randrange(4)))
    if numbers.random() < 0.4:
        return make_request(name, prompt, numbers.randrange(1, 12), stop)
    return beam_request(
        name,
        prompt,
        numbers.randrange(2, 5),
        numbers.randrange(1, 12),
        stop_token_ids=stop,
        length_penalty=numbers.choice([0.5, 1.0, 2.0]),
        early_stopping=numbers.random() < 0.3,
    )


@pytest.mark.parametrize(
    ("policy", "cache"),
    [
        ("max_utilization", "paged"),
        ("max_utilization", "prefix"),
        ("guaranteed_no_evict", "paged"),
        ("guaranteed_no_evict", "prefix"),
        ("guaranteed_no_evict", "contiguous"),
        ("static_batch", "paged"),
        ("static_batch", "contiguous"),
    ],
)
def test_results_equal_those_of_the_search_alone(policy: str, cache: str) -> None:
    for seed in range(20):
        numbers = random.Random(seed)
        lab = _lab(
            paged=cache != "contiguous",
            prefix_caching=cache == "prefix",
            policy=policy,
            num_blocks=numbers.choice([24, 27, 60]),  # the largest request needs 24
            max_num_seqs=numbers.choice([4, 7]),
            max_num_batched_tokens=numbers.choice([13, 100]),
            max_prefill_tokens=13,
            chunked_prefill=numbers.random() < 0.5,
        )
        requests = [_random_request(f"r{i}", numbers) for i in range(12)]
        aborts = [request.id for request in requests if numbers.random() < 0.2]
        outputs = _run(lab, requests, aborts)
        for request in requests:
            if request.id in aborts and not (outputs.get(request.id) and outputs[request.id][-1].finished):
                continue
            _check_result(request, outputs[request.id])


def test_prompt_pages_are_computed_once_and_shared() -> None:
    lab = _lab()
    lab.scheduler.add(beam_request("a", range(1, 14), 4, 8))
    while lab.scheduler.has_work:
        lab.step()
        if lab.scheduler.has_work:
            assert lab.blocks.num_used <= 3 + 4 * 3
    assert lab.num_computed == 13 + 7 * 4


@pytest.mark.parametrize("options", [{"paged": False}, {}, {"prefix_caching": True}])
def test_the_largest_request_that_is_accepted_runs(options: dict[str, bool]) -> None:
    lab = _lab(num_blocks=12, **options)
    request = beam_request("a", range(1, 10), 4, 4)
    with pytest.raises(InvalidRequest):
        lab.scheduler.add(beam_request("b", range(1, 10), 4, 5))
    _check_result(request, _run(lab, [request])["a"])


def test_a_beam_that_was_replaced_by_a_fork_is_found_in_the_prefix_cache() -> None:
    blocks = make_block_manager(32, BLOCK_SIZE, paged=True, prefix_caching=True)
    request = beam_request("a", range(1, 7), 2, 20)
    one, other = Sequence(request), Sequence(request)
    for sequence, token in ((one, 7), (other, 8)):
        assert blocks.admit(sequence, reserve=True)
        _compute(blocks, sequence, [token] * 6)
    assert blocks.fork(one, other, 12) == []
    blocks.check()
    other.token_ids = [*one.token_ids]
    _compute(blocks, other, [9] * 5)
    for sequence in (one, other):
        blocks.release(sequence)
    blocks.check()
    newcomer = Sequence(make_request("b", other.token_ids))
    assert blocks.admit(newcomer, reserve=True)
    assert newcomer.num_computed_tokens == 16


def _compute(blocks: BlockManager, sequence: Sequence, tokens: list[int]) -> None:
    sequence.token_ids += tokens
    assert blocks.extend(sequence, sequence.num_tokens)
    sequence.num_computed_tokens = sequence.num_tokens
    blocks.cache_full_pages(sequence)


def test_a_fork_that_frees_pages_needs_a_reservation() -> None:
    blocks = make_block_manager(32, BLOCK_SIZE, paged=True)
    one, other = (Sequence(beam_request("a", range(1, 7), 2, 20)) for _ in range(2))
    assert blocks.admit(one, reserve=True)
    assert blocks.admit(other, reserve=False)
    _compute(blocks, one, [])
    _compute(blocks, other, [7, 8, 9])
    with pytest.raises(ValueError, match="admitted without a reservation"):
        blocks.fork(one, other, 6)
    blocks.check()


def test_beams_are_never_preempted_but_other_sequences_are() -> None:
    lab = _lab(policy="max_utilization", num_blocks=12, max_num_seqs=8, max_model_len=40)
    requests = [make_request(f"r{i}", [i + 1, 2, 3], 20) for i in range(3)]
    requests.insert(1, beam_request("a", [9, 8, 7], 2, 12))
    outputs = _run(lab, requests)
    assert lab.scheduler.num_preemptions > 0
    for request in requests:
        _check_result(request, outputs[request.id])


def test_beams_are_admitted_together_or_not_at_all() -> None:
    lab = _lab(max_num_seqs=4)
    lab.scheduler.add(make_request("first", max_new_tokens=3))
    lab.scheduler.add(beam_request("a", [1, 2], 4, 4))
    step, _ = lab.step()
    assert [sequence.id for sequence in step.sequences] == ["first"]
    assert lab.scheduler.num_running == 1
    assert lab.scheduler.num_waiting == 1


def test_each_beam_takes_a_place_before_the_queue_counts() -> None:
    searches = tuple(beam_request(f"search {i}", [1, 2, 3], 4, 5) for i in range(3))
    for options, message in (
        ({"max_waiting": 1}, r"1 requests are already waiting"),
        ({"max_waiting": 9, "max_queued_tokens": 5}, r"prompts of 3 tokens are already waiting"),
    ):
        lab = _lab(max_num_seqs=4, **options)
        for request in searches[:2]:
            lab.scheduler.add(request)
        with pytest.raises(Overloaded, match=message):
            lab.scheduler.add(searches[2])
        check_together(searches[:2], lab.scheduler.settings)
        with pytest.raises(InvalidRequest):
            check_together(searches, replace(lab.scheduler.settings, max_queued_tokens=5))


@pytest.mark.parametrize("bad", [0, 3])
def test_a_failing_beam_ends_only_its_own_request(bad: int) -> None:
    lab = _lab(max_num_seqs=8)
    neighbor = make_request("b", [4, 5, 6], 10)
    lab.scheduler.add(beam_request("a", [1, 2, 3], 4, 20))
    lab.scheduler.add(neighbor)
    outputs = [output for _ in range(3) for output in lab.step()[1]]
    step = lab.scheduler.schedule()
    assert step is not None
    tokens = lab.model.sample(step)
    beams = [place for place, sequence in enumerate(step.sequences) if sequence.request.id == "a"]
    assert len(beams) == 4
    tokens[beams[bad]] = tokens[beams[bad]]._replace(finite=False)
    outputs += lab.scheduler.update(step, tokens, 0.0)
    failed = [output for output in outputs if output.id == "a"]
    assert [output.error_kind for output in failed] == ["request_failed"]
    lab.scheduler.check()
    while lab.scheduler.has_work:
        outputs += lab.step()[1]
    _check_result(neighbor, [output for output in outputs if output.id == "b"])
    assert lab.blocks.num_used == 0


def test_a_step_that_fails_for_one_beam_ends_the_whole_request() -> None:
    lab = _lab()
    lab.scheduler.add(beam_request("a", [1, 2, 3], 2, 20))
    lab.step()
    step = lab.scheduler.schedule()
    assert step is not None
    first, second = step.halves()
    lab.model.apply(step.plan)
    (output,) = lab.scheduler.fail(first.sequences, RequestFailed("broken"))
    assert output.id == "a"
    assert lab.scheduler.update(second, lab.model.sample(second), 0.0) == []
    assert not lab.scheduler.has_work
    assert lab.blocks.num_used == 0
    lab.scheduler.check()


def test_a_beam_search_that_can_never_fit_is_refused() -> None:
    lab = _lab(max_num_seqs=4, num_blocks=8, max_model_len=64)
    with pytest.raises(InvalidRequest, match="num_beams=5 needs as many sequences; allowed: at most 4"):
        lab.scheduler.add(beam_request("a", [1], 5, 2))
    lab.scheduler.add(beam_request("b", [1], 4, 8))
    message = (
        r"are 10 in total for each of 4 beams, more than the limit of 9 tokens \(the KV cache holds no more; use fewer"
        r" beams, or raise option.kv_cache_gb\)$"
    )
    with pytest.raises(InvalidRequest, match=message):
        lab.scheduler.add(beam_request("c", [1], 4, 9))
    with pytest.raises(InvalidRequest, match=r"more than the limit of 33 tokens$"):
        lab.scheduler.add(beam_request("d", [1], 1, 64))


def test_log_probabilities_are_returned_when_requested() -> None:
    lab = _lab()
    request = beam_request("a", [1, 2, 3], 3, 6, stop_token_ids=(0,), logprobs=True)
    (output,) = _run(lab, [request])["a"]
    assert output.logprobs == expected_beam_result(request).logprobs
    assert output.finish_reason in (FinishReason.EOS_TOKEN, FinishReason.LENGTH)


@pytest.mark.parametrize("chunked", [True, False], ids=["chunks", "pauses"])
def test_beams_take_turns_when_a_step_cannot_hold_all_running_sequences(chunked: bool) -> None:
    lab = _lab(max_num_seqs=8, num_blocks=256, chunked_prefill=chunked)
    request = beam_request("beams", [7, 8], 2, 5)
    for name in "abc":
        lab.scheduler.add(make_request(name, [1, 2], 40))
    lab.scheduler.add(request)
    lab.step()
    lab.scheduler.reconfigure(replace(lab.scheduler.settings, max_num_batched_tokens=2))
    outputs = [output for _ in range(16) for output in lab.step()[1]]
    (found,) = [output.token_ids for output in outputs if output.id == "beams"]
    assert found == expected_beam_result(request).token_ids
    assert lab.scheduler.num_running == 3
