"""Random requests through the whole engine, and planted bugs that the checks must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engines.mpi.cache.window import Window
from engines.mpi.runner import pending_device_tokens
from engines.mpi.scheduler.planner import StepPlanner
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import Step
from engines.sampling.batch import SamplingRow
from engines.sampling.device import DeviceSampler
from engines.sampling.sampler import Sampler
from engines.sampling.token_counts import TokenCounts
from tests.engines.mpi.property_engine import run
from tests.engines.mpi.scheduler.property_combinations import Combination, combinations
from tests.support.randomness import random_seed


@pytest.mark.parametrize("combination", combinations()[::7], ids=str)
def test_random_requests_get_what_they_get_alone(combination: Combination) -> None:
    report = run(combination, 60, random_seed())
    assert not report.violation, report


def test_random_requests_cover_refusals_failures_and_preemptions() -> None:
    report = run(_CACHED, 400, 1)
    assert not report.violation, report
    for count in (report.num_refused, report.num_failed, report.num_hit_tokens, report.num_preemptions):
        assert count, report


def _graphs_count_tokens_of_prompt_chunks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeviceSampler, "forget", lambda self, table_rows: None)


def _counts_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence is computed again, or a failed step: the device has counted its token already."""

    def follow_any(self: TokenCounts, at: int, row: SamplingRow) -> bool:
        return self.known[at][0] == row.id

    patch.setattr(TokenCounts, "follow", follow_any)


def _results_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    def same(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    patch.setattr(pending_device_tokens, "_to_host", same)


def _unknown_tokens_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Step, "with_known_tokens", lambda self: self)


def _states_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sampler, "forget", lambda self, sequence_id: None)


def _shared_pages_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    fork = StepPlanner._fork

    def fork_without_copies(self: StepPlanner, source: Sequence, sequence: Sequence, num_tokens: int) -> bool:
        done = fork(self, source, sequence, num_tokens)
        self._copies.clear()
        return done

    patch.setattr(StepPlanner, "_fork", fork_without_copies)


def _window_too_short(patch: pytest.MonkeyPatch) -> None:
    first_token = Window.first_token
    patch.setattr(Window, "first_token", lambda self, position: first_token(self, position + 1))


_PLAIN = Combination("max_utilization", True, False, "fcfs", True)
_CACHED = Combination("max_utilization", True, True, "fcfs", True)
_WINDOWED = Combination("max_utilization", True, True, "fcfs", True, windowed=True)


# With these seeds the bugs are found soon.
@pytest.mark.parametrize(
    ("plant", "combination", "seed"),
    [
        (_graphs_count_tokens_of_prompt_chunks, _PLAIN, 5),
        (_counts_are_not_restored, _PLAIN, 6),
        (_results_are_not_copied, _PLAIN, 6),
        (_unknown_tokens_stay, _PLAIN, 6),
        (_states_are_kept, _PLAIN, 6),
        (_shared_pages_are_not_copied, _CACHED, 6),
        (_window_too_short, _WINDOWED, 6),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    combination: Combination,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    report = run(combination, 20_000, seed)
    print(report)
    assert ": expected " in report.violation or "has not forgotten" in report.violation
