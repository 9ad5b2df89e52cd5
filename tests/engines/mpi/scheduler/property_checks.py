"""Invariants of every step that the scheduler plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from engines.core import Request, SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.cache.window import Window, blocks_needed
from engines.mpi.scheduler.policies.fair import OUTPUT_WEIGHT, PROMPT_WEIGHT
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import Step
from tests.engines.mpi.scheduler.property_cache import Violation
from tests.engines.mpi.scheduler.property_combinations import Combination
from tests.engines.mpi.scheduler.property_requests import TENANTS, Subject


@dataclass(slots=True)
class Checks:
    """Checks the invariants of one scheduler, from its first step to its last."""

    combination: Combination
    scheduler: Scheduler
    blocks: BlockManager
    live: dict[str, Subject]
    """Accepted requests that have not ended, in the order of arrival."""
    longest_prompt: int
    longest_output: int
    patience: int
    """Number of steps within which a new token must be computed."""
    window: Window | None
    siblings: bool
    """Requests with the same prompt may share its pages."""
    served: list[int] = field(default_factory=lambda: [0] * len(TENANTS))
    num_recomputed: int = 0
    num_left_out: int = 0
    """How often a step left out a sequence that was ready to decode."""
    _ran: dict[str, Subject] = field(default_factory=dict)
    """Subjects that were running after the last step was planned."""
    _batch: list[str] = field(default_factory=list)
    """Requests that may still join the current static batch, in the order in which they join."""
    _ordered: bool = True
    """Whether the order of `_batch` is known."""
    _max_seqs: int = 0
    _decode_steps: int = 0
    _steps_without_progress: int = 0
    _overtakers: dict[str, set[str]] = field(default_factory=dict)
    """For each sequence that was ready to decode and was left out: the requests served since then."""

    def accepted(self, subject: Subject) -> None:
        self.live[subject.request.id] = subject
        subject.waits_since = tuple(self.served)

    def reconfigured(self, before: SchedulerSettings, after: SchedulerSettings) -> None:
        if before.chunked_prefill != after.chunked_prefill:
            self._decode_steps = 0
        self._overtakers.clear()
        for subject in self.live.values():
            subject.waits_since = tuple(self.served)

    def step(self, step: Step, subjects: list[Subject], settings: SchedulerSettings, preempted: bool) -> None:
        """Check a step that is planned but not computed yet."""
        for sequence in self.scheduler.pop_started():
            subject = self.live[sequence.id]
            if subject.sequence is not None:
                raise Violation(f"{sequence.id} has started twice")
            subject.sequence = sequence
        running = {name: subject for name, subject in self.live.items() if subject.runs}
        before = {name: subject for name, subject in self._ran.items() if name in self.live}
        for name in before.keys() - running.keys():
            self.live[name].waits_since = tuple(self.served)
        waiting = [s for name, s in self.live.items() if name not in running and name not in before]
        admitted = [subject for name, subject in running.items() if name not in before]
        if len(set(step.sequences)) != len(step.sequences):
            raise Violation("a sequence is planned twice")
        if any(not subject.runs for subject in subjects):
            raise Violation("a sequence is planned that is not running")
        if admitted and len(running) > settings.max_num_seqs:
            raise Violation(f"{len(running)} sequences run; max_num_seqs is {settings.max_num_seqs}")
        prefill = self._check_budget(step, subjects, settings, admitted)
        self._check_order(admitted, waiting, before, settings)
        if settings.chunked_prefill:
            self._check_overlay(step, running, settings, prefill)
            idle = (
                prefill < settings.max_prefill_tokens
                and step.plan.num_tokens < settings.max_num_batched_tokens
            )
        else:
            idle = self._check_pause(step, subjects, settings, prefill)
        if settings.chunked_prefill or not prefill:
            self._check_turns(subjects, running, settings)
        joins = self.combination.admission != "static_batch" or not running
        if waiting and idle and joins and not preempted and len(running) < settings.max_num_seqs:
            self._check_joining(waiting, running, settings)
        self._ran = running

    def computed(self, step: Step, subjects: list[Subject]) -> None:
        """Count the tokens of a step that was computed without failure."""
        progress = False
        for subject, start, count in zip(subjects, step.plan.starts, step.plan.query_lens, strict=True):
            stop, ever = start + count, subject.num_ever_computed
            if stop > ever:
                progress = True
                prompt = max(0, min(stop, subject.num_prompt_tokens) - max(start, ever))
                output = max(0, stop - max(start, ever, subject.num_prompt_tokens))
                tenant = TENANTS.index(subject.request.tenant)
                self.served[tenant] += PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * output
                subject.num_ever_computed = stop
        self._steps_without_progress = 0 if progress else self._steps_without_progress + 1
        if self._steps_without_progress > self.patience:
            raise Violation(f"nothing new was computed in {self._steps_without_progress} steps")

    def _tables(self) -> list[list[int]]:
        """Return the blocks that each running sequence holds."""
        running = [s.sequence for s in self.live.values() if s.runs and s.sequence is not None]
        return [sequence.block_table[sequence.num_freed_blocks :] for sequence in running]

    def written(self, blocks: set[int]) -> None:
        """Check that no written block belongs to two sequences. Called before the outputs are processed, since a
        sequence that ends with its first token then hands its pages to siblings."""
        holders = Counter(chain.from_iterable(self._tables()))
        shared = [block for block in blocks if holders[block] > 1]
        if shared:
            raise Violation(f"blocks {shared} were written by one sequence but also belong to another")

    def accounting(self) -> None:
        """Check that block counts and token counts agree, after a step and its outputs."""
        blocks = self.blocks
        tables = self._tables()
        holders = Counter(chain.from_iterable(tables))
        if blocks.num_used != len(holders):
            raise Violation(f"num_used is {blocks.num_used}, but {len(holders)} blocks are in use")
        if blocks.num_free + blocks.num_cached + blocks.num_used != blocks.num_blocks:
            raise Violation(
                f"free {blocks.num_free} + cached {blocks.num_cached} + used {blocks.num_used}, "
                f"but there are {blocks.num_blocks} blocks"
            )
        if not self.combination.paged:
            for table in tables:
                if table != list(range(table[0], table[0] + len(table))):
                    raise Violation(f"{table} is not a contiguous run of blocks")
        scheduler = self.scheduler
        scheduler.check()
        if scheduler.request_ids() != list(self.live):
            raise Violation(f"the scheduler has {scheduler.request_ids()}, but alive are {list(self.live)}")
        waiting = [s.num_tokens for s in self.live.values() if not s.runs]
        if (scheduler.num_waiting, scheduler.num_queued_tokens) != (len(waiting), sum(waiting)):
            raise Violation(
                f"the scheduler counts {scheduler.num_waiting} waiting requests with "
                f"{scheduler.num_queued_tokens} tokens, but there are {len(waiting)} with {sum(waiting)}"
            )
        if scheduler.num_running != len(tables):
            raise Violation(f"num_running is {scheduler.num_running}, but {len(tables)} sequences run")
        if self.combination.admission != "max_utilization":
            self._check_reservations(tables)

    def _check_reservations(self, tables: list[list[int]]) -> None:
        if self.scheduler.num_preemptions:
            raise Violation("a sequence was preempted although its blocks were reserved")
        if self.combination.prefix_caching or self.siblings:
            return  # shared blocks are reserved once
        worst = sum(
            min(
                self._worst_case_blocks(s.request),
                self._worst_case_blocks(s.request, whole=True) - s.sequence.num_freed_blocks,
            )
            for s in self.live.values()
            if s.runs and s.sequence is not None
        )
        if worst > self.blocks.num_blocks:
            raise Violation(f"{worst} blocks are reserved, but there are {self.blocks.num_blocks}")

    def _worst_case_blocks(self, request: Request, whole: bool = False) -> int:
        most = len(request.prompt_token_ids) + request.sampling.max_new_tokens
        return blocks_needed(most, self.blocks.block_size, None if whole else self.window)

    def _check_budget(
        self, step: Step, subjects: list[Subject], settings: SchedulerSettings, admitted: list[Subject]
    ) -> int:
        """Check the token budgets. Return the number of prefill tokens, including recomputed ones."""
        prefill = 0
        for subject, start, count in zip(subjects, step.plan.starts, step.plan.query_lens, strict=True):
            sequence = subject.sequence
            if sequence is None or count < 1 or start != sequence.num_computed_tokens:
                raise Violation(f"{subject.request.id}: {count} tokens from {start} on")
            self._check_window(sequence, start, count)
            self.num_recomputed += max(0, min(start + count, subject.num_ever_computed) - start)
            if subject in admitted or not _decodes(subject, start):
                prefill += count
        total = step.plan.num_tokens
        if settings.chunked_prefill:
            if total > settings.max_num_batched_tokens:
                raise Violation(f"{total} tokens in a step, at most {settings.max_num_batched_tokens} may be")
            if prefill > settings.max_prefill_tokens:
                raise Violation(
                    f"{prefill} prefill tokens in a step, at most {settings.max_prefill_tokens} may be"
                )
        return prefill

    def _check_window(self, sequence: Sequence, start: int, count: int) -> None:
        """A sequence holds at most the blocks of one window, one page and the current chunk."""
        if self.window is None:
            return
        held = len(sequence.block_table) - sequence.num_freed_blocks
        tokens = min(start, self.window.num_tokens - 1) + count
        if held > tokens // self.blocks.block_size + 2:
            raise Violation(f"{sequence.id} holds {held} blocks for {tokens} tokens of a window and a chunk")

    def _check_order(
        self,
        admitted: list[Subject],
        waiting: list[Subject],
        before: dict[str, Subject],
        settings: SchedulerSettings,
    ) -> None:
        """No sequence is admitted before one that the policy ranks higher."""
        if self.combination.admission == "static_batch":
            self._check_batch(admitted, waiting, bool(before), settings)
        elif settings.scheduling_policy == "fair":
            self._check_fair(admitted, waiting, settings)
        else:
            rank = _rank(settings)
            overtaken = [s.request.id for s in waiting if admitted and rank(s) < max(map(rank, admitted))]
            if overtaken:
                raise Violation(f"{[s.request.id for s in admitted]} were admitted before {overtaken}")

    def _check_batch(
        self, admitted: list[Subject], waiting: list[Subject], continues: bool, settings: SchedulerSettings
    ) -> None:
        """Admitted sequences are the next of the current batch or, when none was running, the first of a new one."""
        names = [s.request.id for s in admitted]
        remaining = [name for name in self._batch if name in self.live]
        if continues:
            wrong = set(names) - set(remaining)
            if self._ordered:
                wrong |= set(names) ^ set(remaining[: len(names)])
            if wrong:
                raise Violation(f"{names} joined a static batch that has {remaining} to admit")
            self._batch = [name for name in remaining if name not in names]
            return
        candidates = [s.request.id for s in sorted((*admitted, *waiting), key=_rank(settings))]
        was_ordered = self._ordered
        may_continue = set(names) <= set(remaining[: len(names)] if was_ordered else remaining)
        self._ordered = settings.scheduling_policy != "fair"
        if self._ordered:
            candidates = candidates[: settings.max_num_seqs]
        if names and may_continue:
            # The old batch may continue, or it was closed for lack of room. Both look the same from outside.
            self._ordered = self._ordered and was_ordered and remaining == candidates
            candidates += [name for name in remaining if name not in candidates]
        elif self._ordered and set(names) != set(candidates[: len(names)]):
            raise Violation(f"{names} began a static batch instead of {candidates}")
        self._batch = [name for name in candidates if name not in names]

    def _check_fair(
        self, admitted: list[Subject], waiting: list[Subject], settings: SchedulerSettings
    ) -> None:
        """While a request waits, the service of two tenants differs by at most a few times what one can have in a
        batch: the paper's bound, plus slack for earlier service and for a batch that is filled in one step."""
        self._max_seqs = max(self._max_seqs, settings.max_num_seqs)
        most = max(PROMPT_WEIGHT * self.longest_prompt, OUTPUT_WEIGHT * self.longest_output * self._max_seqs)
        for subject in (*admitted, *waiting[:1]):
            tenant = subject.request.tenant
            if any(s.request.tenant == tenant and s.order < subject.order for s in waiting):
                raise Violation(f"{subject.request.id} was admitted before an earlier request of its tenant")
            own = TENANTS.index(tenant)
            gains = [now - then for now, then in zip(self.served, subject.waits_since, strict=True)]
            if max(gains) - gains[own] > 4 * most:
                raise Violation(
                    f"while {subject.request.id} of {tenant} waited, the tenants were served {gains}; "
                    f"they may differ by {4 * most}"
                )

    def _check_overlay(
        self, step: Step, running: dict[str, Subject], settings: SchedulerSettings, prefill: int
    ) -> None:
        if step.plan.num_tokens >= settings.max_num_batched_tokens:
            return
        planned = {sequence.id for sequence in step.sequences}
        for name, subject in running.items():
            if name in planned or subject.sequence is None:
                continue
            if _decodes(subject, subject.sequence.num_computed_tokens):
                raise Violation(f"{name} was ready to decode but was left out")
            if prefill < settings.max_prefill_tokens and subject.sequence.sibling is None:
                raise Violation(f"{name} was ready to prefill but was left out")

    def _check_turns(
        self, subjects: list[Subject], running: dict[str, Subject], settings: SchedulerSettings
    ) -> None:
        """When a step cannot hold all running sequences, none is served twice while an equal waits for its turn, and
        none of a lower priority is served."""
        left_out = {
            name: subject
            for name, subject in running.items()
            if subject not in subjects
            and subject.sequence is not None
            and _decodes(subject, subject.sequence.num_computed_tokens)
        }
        overtakers = {name: self._overtakers.get(name, set()) for name in left_out}
        for name, subject in left_out.items():
            for other in subjects:
                if settings.scheduling_policy == "priority":
                    difference = other.request.priority - subject.request.priority
                    if difference > 0:
                        raise Violation(
                            f"{name} is left out, but {other.request.id} of a lower priority is not"
                        )
                    equals = difference == 0
                else:
                    equals = (
                        settings.scheduling_policy == "fcfs" or other.request.tenant == subject.request.tenant
                    )
                if equals and other.request.id in overtakers[name]:
                    raise Violation(f"{other.request.id} is served twice while {name} is left out")
                if equals:
                    overtakers[name].add(other.request.id)
        self._overtakers = overtakers
        self.num_left_out += len(left_out)

    def _check_pause(
        self, step: Step, subjects: list[Subject], settings: SchedulerSettings, prefill: int
    ) -> bool:
        """Check the step. Return whether prefills were due although the step has none."""
        total, starts = step.plan.num_tokens, step.plan.starts
        if not prefill:
            self._decode_steps += 1
            if total > settings.max_num_batched_tokens:
                raise Violation(f"{total} tokens in a step, at most {settings.max_num_batched_tokens} may be")
            return self._decode_steps > max(settings.max_waiting_tokens, settings.waiting_steps)
        self._decode_steps = 0
        if prefill != total:
            raise Violation("prompts and decodes share a step although chunked prefill is off")
        if total > min(settings.max_prefill_tokens, settings.max_num_batched_tokens) and len(subjects) > 1:
            raise Violation(f"{len(subjects)} prompts of {total} tokens share a step")
        for subject, start, count in zip(subjects, starts, step.plan.query_lens, strict=True):
            if start + count != subject.num_tokens:
                raise Violation(
                    f"{subject.request.id}: a part of a prompt runs although chunked prefill is off"
                )
        return False

    def _check_joining(
        self, waiting: list[Subject], running: dict[str, Subject], settings: SchedulerSettings
    ) -> None:
        """With a free place and budget, the next sequence may only wait for blocks."""
        heads = [min(waiting, key=_rank(settings))]
        if settings.scheduling_policy == "fair":
            heads = [
                next(s for s in waiting if s.request.tenant == tenant)
                for tenant in {s.request.tenant for s in waiting}
            ]
        if all(self._has_room(head, running) for head in heads):
            raise Violation(f"{heads[0].request.id} waits though a place, blocks and budget are free")

    def _has_room(self, subject: Subject, running: dict[str, Subject]) -> bool:
        """Return whether there is certainly room. The prefix cache may provide more than is counted here."""
        blocks = self.blocks
        if self.combination.admission == "max_utilization":
            needed = -(-subject.num_tokens // blocks.block_size) + 1 + blocks.num_blocks // 100
            if self.window is not None and not self.combination.chunked_prefill:
                needed += len(running)  # each may have freed a block after admission was decided
            return needed <= blocks.num_free + blocks.num_cached
        needed = self._worst_case_blocks(subject.request)
        if self.combination.paged:
            return (
                needed + sum(self._worst_case_blocks(s.request) for s in running.values())
                <= blocks.num_blocks
            )
        used = set(chain.from_iterable(s.sequence.block_table for s in running.values() if s.sequence))
        length = 0
        for block in range(blocks.num_blocks):
            length = 0 if block in used else length + 1
            if length == needed:
                return True
        return False


def _rank(settings: SchedulerSettings) -> Callable[[Subject], tuple[int, int]]:
    if settings.scheduling_policy == "priority":
        return lambda subject: (subject.request.priority, subject.order)
    return lambda subject: (0, subject.order)


def _decodes(subject: Subject, start: int) -> bool:
    return subject.num_reported > 0 and start == subject.num_tokens - 1
