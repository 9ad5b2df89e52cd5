"""option.enable_chunked_prefill=false: decodes wait while whole prompts run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.mpi.fakes import make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab, counts, ids


def _pausing_lab(**options: Any) -> Lab:
    return Lab(chunked_prefill=False, **options)


def test_prompts_share_steps_but_one_longer_than_the_limit_runs_alone_and_whole() -> None:
    lab = _pausing_lab(max_prefill_tokens=8)
    for name, length in (("a", 3), ("b", 4), ("long", 30), ("next", 2)):
        lab.scheduler.add(make_request(name, range(length), 5))
    steps = [lab.step()[0] for _ in range(3)]
    assert [ids(step) for step in steps] == [["a", "b"], ["long"], ["next"]]
    assert [counts(step) for step in steps] == [[3, 4], [30], [2]]


def test_few_waiting_requests_do_not_pause_many_running_ones() -> None:
    """waiting_served_ratio and max_waiting_tokens work as in TGI."""
    lab = _pausing_lab(
        num_blocks=200,
        max_num_seqs=12,
        max_prefill_tokens=64,
        waiting_served_ratio=0.39,
        max_waiting_tokens=6,
    )
    for i in range(10):
        lab.scheduler.add(make_request(str(i), range(3), 40))
    lab.step()
    lab.scheduler.add(make_request("lonely", range(3), 5))
    steps = [ids(lab.step()[0]) for _ in range(7)]
    assert ["lonely" in step for step in steps] == [False] * 6 + [True]
    lab.scheduler.abort("lonely")
    for name in ("x", "y", "z"):
        lab.scheduler.add(make_request(name, range(3), 5))
    assert set(ids(lab.step()[0])) <= {"x", "y", "z"}, "3 of 10 are enough, since 3.9 is rounded down"


@pytest.mark.parametrize("waiting_steps", [0, 3])
def test_waiting_steps_is_the_minimum_between_two_pauses(waiting_steps: int) -> None:
    lab = _pausing_lab(waiting_served_ratio=0.0, waiting_steps=waiting_steps, max_prefill_tokens=64)
    lab.scheduler.add(make_request("old", range(3), 40))
    lab.step()
    lab.scheduler.add(make_request("new", range(3), 40))
    steps = [ids(lab.step()[0]) for _ in range(waiting_steps + 1)]
    assert steps == [["old"]] * waiting_steps + [["new"]]
