"""Decodes wait while whole prompts run: what Hugging Face's TGI does, and the AWS post on LMI describes."""

from __future__ import annotations

from engines.core import SchedulerSettings
from engines.mpi.scheduler.running_set import RunningSet
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import StepDraft, is_decoding


class Pause:
    """A step has prompts, or single tokens of generating sequences."""

    def __init__(self) -> None:
        self._decode_steps = 0
        """Since the last pause."""

    def plan(self, running: RunningSet, settings: SchedulerSettings, draft: StepDraft, now: float) -> None:
        behind = [
            sequence
            for sequence in running.sequences()
            if sequence.num_computed_tokens < sequence.num_tokens
            and not is_decoding(sequence)
            and not sequence.is_complete
        ]
        if behind or self._is_time(len(running), len(running.waiting), settings):
            self._plan_prompts(behind, running, settings, draft, now)
            if draft.prefills:
                self._decode_steps = 0
                return
        self._decode_steps += 1
        if len(running) > settings.max_num_batched_tokens:
            running.plan_turns(settings.max_num_batched_tokens, draft)
        else:
            running.plan_decodes(draft)

    def _is_time(self, num_running: int, num_waiting: int, settings: SchedulerSettings) -> bool:
        if num_running == 0:
            return True
        if self._decode_steps < settings.waiting_steps:
            return False
        if self._decode_steps >= settings.max_waiting_tokens:
            return num_waiting > 0
        return num_waiting > 0 and num_waiting >= int(settings.waiting_served_ratio * num_running)

    def _plan_prompts(
        self,
        behind: list[Sequence],
        running: RunningSet,
        settings: SchedulerSettings,
        draft: StepDraft,
        now: float,
    ) -> None:
        limit = min(settings.max_prefill_tokens, settings.max_num_batched_tokens)
        for sequence in behind:
            if not sequence.waits and _fits(sequence, limit, draft):
                _add_whole(sequence, running, draft)
        while not draft.preempted:
            candidate = running.candidate()
            if candidate is None or not _fits(candidate, limit, draft) or not running.admit(candidate, now):
                break
            _add_whole(candidate, running, draft)


def _fits(sequence: Sequence, limit: int, draft: StepDraft) -> bool:
    """One that is longer than the limit runs in a step of its own."""
    left = sequence.num_tokens - sequence.num_computed_tokens
    return not draft.prefills or draft.num_tokens + left <= limit


def _add_whole(sequence: Sequence, running: RunningSet, draft: StepDraft) -> None:
    if running.ready(sequence, draft) and running.make_room(sequence, sequence.num_tokens, draft):
        draft.add_prefill(sequence, sequence.num_tokens - sequence.num_computed_tokens)
