"""Random steps for every combination of options, and planted bugs that the checks must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from engines.core import RequestOutput, SchedulerSettings
from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.cache.prefix_cache import PrefixCache
from engines.mpi.cache.window import Window
from engines.mpi.scheduler import prefill
from engines.mpi.scheduler.planner import StepPlanner
from engines.mpi.scheduler.policies.fair import Fair
from engines.mpi.scheduler.policies.fcfs import FirstComeFirstServed
from engines.mpi.scheduler.policies.priority import Priority
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.scheduler.property_combinations import Combination, combinations
from tests.engines.mpi.scheduler.property_steps import main, run
from tests.support.randomness import random_seed

_NUM_STEPS = 150


@pytest.mark.parametrize("combination", combinations(), ids=str)
def test_random_steps(combination: Combination) -> None:
    report = run(combination, _NUM_STEPS, random_seed())
    assert not report.violation, report


def test_random_steps_cover_refusals_failures_and_preemptions() -> None:
    report = run(Combination("max_utilization", True, True, "fcfs", True), 2000, 1)
    assert not report.violation
    for count in (report.num_refused, report.num_failed, report.num_hit_tokens, report.num_recomputed_tokens):
        assert count > 20
    assert report.num_preemptions > 20
    assert run(_PAUSE, 1000, 1).num_left_out > 20


def test_the_same_seed_gives_the_same_steps() -> None:
    combination = Combination("max_utilization", True, True, "fair", True)
    assert run(combination, 100, 3) == run(combination, 100, 3)
    assert run(combination, 100, 3) != run(combination, 100, 4)


def _block_kept_on_abort(patch: pytest.MonkeyPatch) -> None:
    release, abort = PagedBlocks.release, Scheduler.abort
    aborting = False

    def forgetful_release(self: PagedBlocks, sequence: Sequence) -> None:
        if aborting and len(sequence.block_table) > 1:
            sequence.block_table.pop()
        release(self, sequence)

    def abort_and_forget(self: Scheduler, request_id: str) -> Sequence | None:
        nonlocal aborting
        aborting = True
        try:
            return abort(self, request_id)
        finally:
            aborting = False

    patch.setattr(PagedBlocks, "release", forgetful_release)
    patch.setattr(Scheduler, "abort", abort_and_forget)


def _budget_off_by_one(patch: pytest.MonkeyPatch) -> None:
    chunk_size = prefill.chunk_size

    def more(missing: int, prefills: int, tokens: int, settings: SchedulerSettings) -> int:
        larger = replace(settings, max_prefill_tokens=settings.max_prefill_tokens + 1)
        return chunk_size(missing, prefills, tokens, larger)

    patch.setattr(prefill, "chunk_size", more)


def _end_reported_twice(patch: pytest.MonkeyPatch) -> None:
    fail = Scheduler.fail

    def report_twice(self: Scheduler, sequences: Iterable[Sequence], error: Exception) -> list[RequestOutput]:
        outputs = fail(self, sequences, error)  # type: ignore[arg-type]
        return outputs + outputs

    patch.setattr(Scheduler, "fail", report_twice)


def _end_never_reported(patch: pytest.MonkeyPatch) -> None:
    update = Scheduler.update

    def swallow(self: Scheduler, *arguments: object) -> list[RequestOutput]:
        outputs = update(self, *arguments)  # type: ignore[arg-type]
        return [output for output in outputs if not (output.finished and output.id.endswith("7"))]

    patch.setattr(Scheduler, "update", swallow)


def _newcomer_jumps_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FirstComeFirstServed, "head", lambda self: max(self, key=lambda one: one.number))


def _most_served_tenant_comes_first(patch: pytest.MonkeyPatch) -> None:
    def greedy_head(self: Fair) -> Sequence:
        return min(self, key=lambda one: (-self.weighted_tokens(one.request.tenant), one.number))

    patch.setattr(Fair, "head", greedy_head)


def _no_admission_while_others_run(patch: pytest.MonkeyPatch) -> None:
    candidate = StepPlanner._candidate
    patch.setattr(StepPlanner, "_candidate", lambda self: None if self.running else candidate(self))


def _prefix_of_another_tenant(patch: pytest.MonkeyPatch) -> None:
    content = PrefixCache._content

    def without_tenant(self: PrefixCache, sequence: Sequence, index: int) -> bytes:
        found = content(self, sequence, index)
        return found if index else found.removeprefix(sequence.request.tenant.encode())

    patch.setattr(PrefixCache, "_content", without_tenant)


def _preempted_tokens_are_sent_again(patch: pytest.MonkeyPatch) -> None:
    preempt = StepPlanner._preempt

    def start_over(self: StepPlanner, sequence: Sequence) -> None:
        preempt(self, sequence)
        del sequence.token_ids[sequence.num_prompt_tokens :]

    patch.setattr(StepPlanner, "_preempt", start_over)


def _copy_forgotten(patch: pytest.MonkeyPatch) -> None:
    fork = PagedBlocks.fork

    def fork_without(self: PagedBlocks, *arguments: object) -> list[tuple[int, int]] | None:
        return None if fork(self, *arguments) is None else []  # type: ignore[arg-type]

    patch.setattr(PagedBlocks, "fork", fork_without)


def _only_the_oldest_are_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FirstComeFirstServed, "precedence", lambda self, sequence: sequence.number)


def _priorities_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Priority, "precedence", lambda self, sequence: 0)


def _window_too_short(patch: pytest.MonkeyPatch) -> None:
    first_token = Window.first_token
    patch.setattr(Window, "first_token", lambda self, position: first_token(self, position + 1))


def _blocks_out_of_window_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PagedBlocks, "free_out_of_window", lambda self, sequence: None)


def _blocks_out_of_window_are_cached(patch: pytest.MonkeyPatch) -> None:
    add_full_pages = PrefixCache.add_full_pages

    def add_all(self: PrefixCache, sequence: Sequence) -> None:
        self._window = None
        add_full_pages(self, sequence)

    patch.setattr(PrefixCache, "add_full_pages", add_all)


def _deadline_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "expire", lambda self, now: [])


_OPTIMISTIC = Combination("max_utilization", True, True, "fcfs", True)
_FAIR = Combination("max_utilization", True, True, "fair", True)
_PAUSE = Combination("guaranteed_no_evict", True, False, "fcfs", False)
_WINDOWED = Combination("max_utilization", True, True, "fcfs", True, windowed=True)
_PRIORITY = Combination("max_utilization", True, False, "priority", False)


@pytest.mark.parametrize(
    ("plant", "combination", "message"),
    [
        (_block_kept_on_abort, _OPTIMISTIC, ""),
        (_budget_off_by_one, _OPTIMISTIC, "may be"),
        (_budget_off_by_one, _PAUSE, "share a step"),
        (_end_reported_twice, _OPTIMISTIC, ""),
        (_end_never_reported, _OPTIMISTIC, "alive are"),
        (_newcomer_jumps_the_queue, _OPTIMISTIC, "were admitted before"),
        (_most_served_tenant_comes_first, _FAIR, "they may differ by"),
        (_no_admission_while_others_run, _OPTIMISTIC, "waits though"),
        (_no_admission_while_others_run, _PAUSE, "waits though"),
        (_prefix_of_another_tenant, _OPTIMISTIC, "its own tokens"),
        (_preempted_tokens_are_sent_again, _OPTIMISTIC, ""),
        (_copy_forgotten, _OPTIMISTIC, "its own tokens"),
        (_only_the_oldest_are_served, _OPTIMISTIC, "is left out"),
        (_only_the_oldest_are_served, _PAUSE, "is left out"),
        (_priorities_are_ignored, _PRIORITY, "of a lower priority is not"),
        (_deadline_overlooked, _OPTIMISTIC, "are due"),
        (_window_too_short, _WINDOWED, "its own tokens"),
        (_blocks_out_of_window_are_kept, _WINDOWED, "of a window and a chunk"),
        (_blocks_out_of_window_are_cached, _WINDOWED, ""),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    combination: Combination,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    report = run(combination, 20_000, 11)
    assert message in report.violation
    assert report.violation
    print(report)


def test_the_command_exits_with_1_and_prints_the_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--steps", "500", "--seed", "4", "--only", "max_utilization paged fcfs overlay"]
    assert main(arguments) == 0
    assert "0 violations" in capsys.readouterr().out
    _budget_off_by_one(monkeypatch)
    assert main(arguments) == 1
    assert "VIOLATION (--seed 4): step" in capsys.readouterr().out
