"""Chunks of prompts ride with others' single tokens (Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310)."""

from __future__ import annotations

from engines.core import SchedulerSettings
from engines.mpi.scheduler.running_set import RunningSet
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import StepDraft


class Overlay:
    """Generating sequences first, then those that catch up, then newcomers, as far as the budgets go."""

    def plan(self, running: RunningSet, settings: SchedulerSettings, draft: StepDraft, now: float) -> None:

        def catch_up(sequence: Sequence) -> None:
            _add_chunk(sequence, running, settings, draft)

        if len(running) > settings.max_num_batched_tokens:
            running.plan_turns(settings.max_num_batched_tokens, draft, catch_up)
        else:
            for sequence in running.plan_decodes(draft):
                if not sequence.waits:
                    catch_up(sequence)
        while _room(settings, draft) > 0 and not draft.preempted:
            candidate = running.candidate()
            if candidate is None or not running.admit(candidate, now):
                break
            _add_chunk(candidate, running, settings, draft)


def _room(settings: SchedulerSettings, draft: StepDraft) -> int:
    return min(
        settings.max_prefill_tokens - draft.num_prefill_tokens,
        settings.max_num_batched_tokens - draft.num_tokens,
    )


def _add_chunk(
    sequence: Sequence, running: RunningSet, settings: SchedulerSettings, draft: StepDraft
) -> None:
    if not running.ready(sequence, draft):
        return
    start = sequence.num_computed_tokens
    count = min(sequence.num_tokens - start, _room(settings, draft))
    if count > 0 and running.make_room(sequence, start + count, draft):
        draft.add_prefill(sequence, count)
