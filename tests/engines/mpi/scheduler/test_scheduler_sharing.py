"""Pages shared through the prefix cache, and between requests with the same prompt."""

from __future__ import annotations

import dataclasses

import pytest

from engines.core import Request, RequestOutput
from engines.errors import RequestFailed
from tests.engines.mpi.fakes import expected_output, make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab, counts


def _tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def _sibling(request: Request, name: str) -> Request:
    return dataclasses.replace(request, id=name, same_prompt_as=request.id)


def test_a_cached_prefix_is_not_computed_again() -> None:
    lab = Lab(prefix_caching=True, max_prefill_tokens=64)
    lab.scheduler.add(make_request("a", range(18), 3))
    lab.run()
    again = make_request("b", [*range(16), 30, 31, 29], 3)
    lab.scheduler.add(again)
    step, (output,) = lab.step()
    assert counts(step) == [3]
    assert output.num_cached_tokens == 16
    assert lab.scheduler.num_prefix_hit_tokens == 16
    assert [*output.token_ids, *_tokens(lab.run()["b"])] == expected_output(again)[0]


def test_tenants_share_nothing() -> None:
    lab = Lab(prefix_caching=True)
    first = dataclasses.replace(make_request("a", range(12), 2), tenant="one")
    lab.scheduler.add(first)
    lab.run()
    lab.scheduler.add(dataclasses.replace(first, id="b", tenant="two"))
    lab.run()
    assert lab.scheduler.num_prefix_hit_tokens == 0
    lab.scheduler.add(dataclasses.replace(first, id="c"))
    lab.run()
    assert lab.scheduler.num_prefix_hit_tokens == 8


@pytest.mark.parametrize(("paged", "prefix_caching"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("length", [1, 8, 9, 23])
@pytest.mark.parametrize(("new", "max_chunk"), [(1, 64), (6, 8)])
def test_siblings_compute_their_prompt_once(
    paged: bool, prefix_caching: bool, length: int, new: int, max_chunk: int
) -> None:
    lab = Lab(paged, prefix_caching=prefix_caching, max_prefill_tokens=max_chunk)
    first = make_request("a", range(length), new)
    requests = [first, _sibling(first, "b"), _sibling(first, "c")]
    for request in requests:
        lab.scheduler.add(request)
    outputs = lab.run()
    for request in requests:
        assert _tokens(outputs[request.id]) == expected_output(request)[0]
    decodes = 3 * (new - 1)
    assert lab.num_computed == decodes + length + 2, "siblings compute only the last token of the prompt"
    assert [outputs[name][0].num_cached_tokens for name in "bc"] == [length - 1] * 2
    assert lab.blocks.num_used == 0


def test_siblings_share_the_pages_of_their_prompt() -> None:
    lab = Lab(max_prefill_tokens=64)
    first = make_request("a", range(17), 6)
    for request in (first, _sibling(first, "b"), _sibling(first, "c")):
        lab.scheduler.add(request)
    for _ in range(3):
        lab.step()
    assert lab.blocks.num_used == 4 + 3 * 1, "4 shared full pages, and one last page each"


@pytest.mark.parametrize("fate", ["aborted", "ended", "failed"])
def test_a_request_that_loses_its_sibling_computes_the_prompt_itself(fate: str) -> None:
    lab = Lab(max_num_seqs=1 if fate == "ended" else 4, max_prefill_tokens=8)
    first = make_request("a", range(20), 2)
    second = _sibling(first, "b")
    lab.scheduler.add(first)
    lab.scheduler.add(second)
    step, _ = lab.step()
    if fate == "aborted":
        lab.scheduler.abort("a")
    elif fate == "failed":
        lab.scheduler.fail(step.sequences[:1], RequestFailed("broken"))
    assert _tokens(lab.run()["b"]) == expected_output(second)[0]


def test_a_request_with_another_prompt_or_tenant_is_not_a_sibling() -> None:
    lab = Lab(max_prefill_tokens=64)
    first = make_request("a", range(9), 4)
    lab.scheduler.add(first)
    lab.scheduler.add(dataclasses.replace(_sibling(first, "b"), tenant="other"))
    lab.scheduler.add(dataclasses.replace(make_request("c", range(1, 10), 4), same_prompt_as="a"))
    step, _ = lab.step()
    assert counts(step) == [9, 9, 9]


def test_a_preemption_counts_only_if_computed_tokens_are_lost() -> None:
    """Siblings that wait for the prompt hold nothing, but are preempted first."""
    lab = Lab(num_blocks=4, max_prefill_tokens=64, policy="max_utilization")
    requests = [
        make_request("running", range(8), 8),
        make_request("a", range(4), 2),
        *(dataclasses.replace(make_request(name, range(4), 1), same_prompt_as="a") for name in "bc"),
    ]
    for request in requests:
        lab.scheduler.add(request)
    lab.step()
    assert lab.scheduler.num_running == 4
    lab.step()
    assert lab.scheduler.num_running == 1
    assert lab.scheduler.num_preemptions == 1
