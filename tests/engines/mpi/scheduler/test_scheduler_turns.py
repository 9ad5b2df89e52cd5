"""Steps with fewer tokens than running sequences: the order of service, without starvation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.engines.mpi.fakes import expected_output, make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab, ids

_MODES = pytest.mark.parametrize("chunked", [True, False], ids=["chunks", "pauses"])


def _decoding_lab(budget: int, *requests: dict[str, Any], **options: Any) -> Lab:
    """Start the requests until all of them decode, then limit steps to `budget` tokens."""
    lab = Lab(max_num_seqs=16, max_prefill_tokens=64, num_blocks=256, **options)
    for number, fields in enumerate(requests):
        lab.scheduler.add(replace(make_request(str(number), [number, 1], 40), **fields))
    lab.step()
    assert lab.scheduler.num_running == len(requests)
    lab.scheduler.reconfigure(replace(lab.scheduler.settings, max_num_batched_tokens=budget))
    return lab


def _served(lab: Lab, num_steps: int) -> Counter[str]:
    served: Counter[str] = Counter()
    for _ in range(num_steps):
        step, _ = lab.step()
        assert step.plan.num_tokens == lab.scheduler.settings.max_num_batched_tokens
        served.update(ids(step))
    return served


@_MODES
def test_fcfs_serves_sequences_in_turn(chunked: bool) -> None:
    lab = _decoding_lab(2, *[{}] * 5, chunked_prefill=chunked)
    turns = [ids(lab.step()[0]) for _ in range(5)]
    assert turns == [["0", "1"], ["2", "3"], ["4", "0"], ["1", "2"], ["3", "4"]]
    assert _served(lab, 20) == {str(number): 8 for number in range(5)}


@_MODES
def test_fair_serves_tenants_equally_whatever_their_number_of_requests(chunked: bool) -> None:
    large, small = {"tenant": "many"}, {"tenant": "one"}
    lab = _decoding_lab(2, *[large] * 6, small, small, chunked_prefill=chunked, scheduling_policy="fair")
    served = _served(lab, 24)
    assert served["6"] + served["7"] == pytest.approx(24, abs=4)
    assert abs(served["6"] - served["7"]) <= 1
    assert max(served[str(i)] for i in range(6)) - min(served[str(i)] for i in range(6)) <= 1


def test_a_prompt_takes_turns_with_decodes() -> None:
    lab = Lab(max_num_seqs=16, max_prefill_tokens=4)
    for name in "abc":
        lab.scheduler.add(make_request(name, [1], 40))
    lab.step()
    long = make_request("long", range(20), 2)
    lab.scheduler.add(long)
    lab.step()
    lab.scheduler.reconfigure(replace(lab.scheduler.settings, max_num_batched_tokens=3))
    tokens: list[int] = []
    for _ in range(25):
        for output in lab.step()[1]:
            tokens += output.token_ids if output.id == "long" else ()
    assert tokens == expected_output(long)[0], "the long request has ended while the others continue"
    assert lab.scheduler.num_running == 3


@pytest.mark.parametrize("scheduling_policy", ["priority", "fcfs"])
def test_a_request_with_precedence_does_not_wait_for_the_end_of_a_long_prompt(scheduling_policy: str) -> None:
    lab = Lab(max_num_batched_tokens=8, max_prefill_tokens=8, scheduling_policy=scheduling_policy)
    long = make_request("long", range(40), 2)
    lab.scheduler.add(replace(long, priority=10))
    lab.step()
    lab.scheduler.add(replace(make_request("short", range(3), 2), priority=-10))
    lab.scheduler.add(replace(make_request("last", range(3), 2), priority=20))
    steps = [ids(lab.step()[0]) for _ in range(2)]
    if scheduling_policy == "fcfs":
        assert steps == [["long"], ["long"]]
    else:
        assert set(steps[0]) == {"short", "long"}
        assert all("last" not in step for step in steps)
