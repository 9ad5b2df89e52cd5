"""What must hold of every step that the scheduler plans, whatever it was asked before."""

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
    """Follows one scheduler from its first step to its last."""

    combination: Combination
    scheduler: Scheduler
    blocks: BlockManager
    live: dict[str, Subject]
    """Accepted and not ended, in the order of arrival."""
    longest_prompt: int
    longest_output: int
    patience: int
    """Steps within which something new must be computed."""
    window: Window | None
    siblings: bool
    """There may be requests with the same prompt that share its pages."""
    served: list[int] = field(default_factory=lambda: [0] * len(TENANTS))
    num_recomputed: int = 0
    num_left_out: int = 0
    """How often one that could have had its next token was left out."""
    _ran: dict[str, Subject] = field(default_factory=dict)
    """Those that ran when the last step had been planned."""
    _batch: list[str] = field(default_factory=list)
    """Of the static batch that began last, whoever might be in it, in the order in which they join."""
    _ordered: bool = True
    """That order is known."""
    _most_seqs: int = 0
    _decode_steps: int = 0
    _steps_without_progress: int = 0
    _overtakers: dict[str, set[str]] = field(default_factory=dict)
    """For each that could have had its next token and was left out: who was served since."""

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
        """A step was planned, and is not computed yet."""
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
        came = [subject for name, subject in running.items() if name not in before]
        if len(set(step.sequences)) != len(step.sequences):
            raise Violation("a sequence is planned twice")
        if any(not subject.runs for subject in subjects):
            raise Violation("a sequence is planned that does not run")
        if came and len(running) > settings.max_num_seqs:
            raise Violation(f"{len(running)} run, {settings.max_num_seqs} may")
        prefill = self._check_budget(step, subjects, settings, came)
        self._check_order(came, waiting, before, settings)
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
        """Count what was computed of those that have not failed."""
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

    def accounting(self, written: set[int]) -> None:
        """Blocks and sums agree, after a step and its outputs."""
        blocks = self.blocks
        running = [s.sequence for s in self.live.values() if s.runs and s.sequence is not None]
        tables = [sequence.block_table[sequence.num_freed_blocks :] for sequence in running]
        holders = Counter(chain.from_iterable(tables))
        if blocks.num_used != len(holders):
            raise Violation(f"{blocks.num_used} blocks are said to be used, {len(holders)} are")
        if blocks.num_free + blocks.num_cached + blocks.num_used != blocks.num_blocks:
            raise Violation(
                f"free {blocks.num_free} + cached {blocks.num_cached} + used {blocks.num_used}, "
                f"and there are {blocks.num_blocks}"
            )
        shared = [block for block in written if holders[block] > 1]
        if shared:
            raise Violation(f"blocks {shared} were written by one sequence and belong to another too")
        if not self.combination.paged:
            for table in tables:
                if table != list(range(table[0], table[0] + len(table))):
                    raise Violation(f"{table} is not one run of blocks")
        scheduler = self.scheduler
        scheduler.check()
        if scheduler.request_ids() != list(self.live):
            raise Violation(f"requests {scheduler.request_ids()}, and alive are {list(self.live)}")
        waiting = [s.num_tokens for s in self.live.values() if not s.runs]
        if (scheduler.num_waiting, scheduler.num_queued_tokens) != (len(waiting), sum(waiting)):
            raise Violation(
                f"{scheduler.num_waiting} requests of {scheduler.num_queued_tokens} tokens are said to wait, "
                f"{len(waiting)} of {sum(waiting)} do"
            )
        if scheduler.num_running != len(tables):
            raise Violation(f"{scheduler.num_running} are said to run, {len(tables)} do")
        if self.combination.admission != "max_utilization":
            self._check_promises(tables)

    def _check_promises(self, tables: list[list[int]]) -> None:
        if self.scheduler.num_preemptions:
            raise Violation("somebody was preempted though all was promised")
        if self.combination.prefix_caching or self.siblings:
            return  # what is shared is promised once
        worst = sum(
            min(self._worst(s.request), self._worst(s.request, whole=True) - s.sequence.num_freed_blocks)
            for s in self.live.values()
            if s.runs and s.sequence is not None
        )
        if worst > self.blocks.num_blocks:
            raise Violation(f"{worst} blocks are promised, there are {self.blocks.num_blocks}")

    def _worst(self, request: Request, whole: bool = False) -> int:
        most = len(request.prompt_token_ids) + request.sampling.max_new_tokens
        return blocks_needed(most, self.blocks.block_size, None if whole else self.window)

    def _check_budget(
        self, step: Step, subjects: list[Subject], settings: SchedulerSettings, came: list[Subject]
    ) -> int:
        """Tokens in the step of those that catch up: of prompts, of what is computed again."""
        prefill = 0
        for subject, start, count in zip(subjects, step.plan.starts, step.plan.query_lens, strict=True):
            sequence = subject.sequence
            if sequence is None or count < 1 or start != sequence.num_computed_tokens:
                raise Violation(f"{subject.request.id}: {count} tokens from {start} on")
            self._check_window(sequence, start, count)
            self.num_recomputed += max(0, min(start + count, subject.num_ever_computed) - start)
            if subject in came or not _decodes(subject, start):
                prefill += count
        total = step.plan.num_tokens
        if settings.chunked_prefill:
            if total > settings.max_num_batched_tokens:
                raise Violation(f"{total} tokens in a step, {settings.max_num_batched_tokens} may be")
            if prefill > settings.max_prefill_tokens:
                raise Violation(f"{prefill} prompt tokens in a step, {settings.max_prefill_tokens} may be")
        return prefill

    def _check_window(self, sequence: Sequence, start: int, count: int) -> None:
        """A sequence holds the blocks of one window, one page, and the chunk that is computed."""
        if self.window is None:
            return
        held = len(sequence.block_table) - sequence.num_freed_blocks
        tokens = min(start, self.window.num_tokens - 1) + count
        if held > tokens // self.blocks.block_size + 2:
            raise Violation(f"{sequence.id} holds {held} blocks for {tokens} tokens of a window and a chunk")

    def _check_order(
        self,
        came: list[Subject],
        waiting: list[Subject],
        before: dict[str, Subject],
        settings: SchedulerSettings,
    ) -> None:
        """Nobody is admitted before those that come first by the policy."""
        if self.combination.admission == "static_batch":
            self._check_batch(came, waiting, bool(before), settings)
        elif settings.scheduling_policy == "fair":
            self._check_fair(came, waiting, settings)
        else:
            rank = _rank(settings)
            passed = [s.request.id for s in waiting if came and rank(s) < max(map(rank, came))]
            if passed:
                raise Violation(f"{[s.request.id for s in came]} were admitted before {passed}")

    def _check_batch(
        self, came: list[Subject], waiting: list[Subject], goes_on: bool, settings: SchedulerSettings
    ) -> None:
        """Who came is next in the batch that has begun, or, when nobody ran, first of a new one."""
        names = [s.request.id for s in came]
        left = [name for name in self._batch if name in self.live]
        if goes_on:
            wrong = set(names) - set(left)
            if self._ordered:
                wrong |= set(names) ^ set(left[: len(names)])
            if wrong:
                raise Violation(f"{names} have joined a static batch that had begun, with {left} to come")
            self._batch = [name for name in left if name not in names]
            return
        chosen = [s.request.id for s in sorted((*came, *waiting), key=_rank(settings))]
        was_ordered = self._ordered
        may_go_on = set(names) <= set(left[: len(names)] if was_ordered else left)
        self._ordered = settings.scheduling_policy != "fair"
        if self._ordered:
            chosen = chosen[: settings.max_num_seqs]
        if names and may_go_on:
            # Whether the old batch goes on or was closed as it had no room, nobody can see.
            self._ordered = self._ordered and was_ordered and left == chosen
            chosen += [name for name in left if name not in chosen]
        elif self._ordered and set(names) != set(chosen[: len(names)]):
            raise Violation(f"{names} began a static batch, and {chosen} were to")
        self._batch = [name for name in chosen if name not in names]

    def _check_fair(self, came: list[Subject], waiting: list[Subject], settings: SchedulerSettings) -> None:
        """What tenants are served while one waits differs by a few times what one can have in the batch at once: the
        paper's bound, with room for what a tenant had had before, and for a batch that was filled in one step."""
        self._most_seqs = max(self._most_seqs, settings.max_num_seqs)
        most = max(PROMPT_WEIGHT * self.longest_prompt, OUTPUT_WEIGHT * self.longest_output * self._most_seqs)
        for subject in (*came, *waiting[:1]):
            tenant = subject.request.tenant
            if any(s.request.tenant == tenant and s.order < subject.order for s in waiting):
                raise Violation(f"{subject.request.id} was admitted before an earlier one of its tenant")
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
                raise Violation(f"{name} could have its next token, and was left out")
            if prefill < settings.max_prefill_tokens and subject.sequence.sibling is None:
                raise Violation(f"{name} could catch up, and was left out")

    def _check_turns(
        self, subjects: list[Subject], running: dict[str, Subject], settings: SchedulerSettings
    ) -> None:
        """Where the step does not hold all that run, nobody of the same standing is served twice before one that could
        have been served, and nobody of a lower one at all."""
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
                            f"{name} is left out, and {other.request.id} of a lower priority is not"
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
        """Whether prompts should have run in this step, which has none."""
        total, starts = step.plan.num_tokens, step.plan.starts
        if not prefill:
            self._decode_steps += 1
            if total > settings.max_num_batched_tokens:
                raise Violation(f"{total} tokens in a step, {settings.max_num_batched_tokens} may be")
            return self._decode_steps > max(settings.max_waiting_tokens, settings.waiting_steps)
        self._decode_steps = 0
        if prefill != total:
            raise Violation("prompts and decodes share a step, and chunked prefill is off")
        if total > min(settings.max_prefill_tokens, settings.max_num_batched_tokens) and len(subjects) > 1:
            raise Violation(f"{len(subjects)} prompts of {total} tokens share a step")
        for subject, start, count in zip(subjects, starts, step.plan.query_lens, strict=True):
            if start + count != subject.num_tokens:
                raise Violation(f"{subject.request.id}: a part of a prompt, and chunked prefill is off")
        return False

    def _check_joining(
        self, waiting: list[Subject], running: dict[str, Subject], settings: SchedulerSettings
    ) -> None:
        """Place and budget are free: then the next one waits for blocks, or has no reason to wait."""
        heads = [min(waiting, key=_rank(settings))]
        if settings.scheduling_policy == "fair":
            heads = [
                next(s for s in waiting if s.request.tenant == tenant)
                for tenant in {s.request.tenant for s in waiting}
            ]
        if all(self._has_room(head, running) for head in heads):
            raise Violation(f"{heads[0].request.id} waits though place, blocks and budget are free")

    def _has_room(self, subject: Subject, running: dict[str, Subject]) -> bool:
        """Surely. The prefix cache may make more room than is counted here."""
        blocks = self.blocks
        if self.combination.admission == "max_utilization":
            needed = -(-subject.num_tokens // blocks.block_size) + 1 + blocks.num_blocks // 100
            if self.window is not None and not self.combination.chunked_prefill:
                needed += len(running)  # each may have freed a block after prompts were looked at
            return needed <= blocks.num_free + blocks.num_cached
        needed = self._worst(subject.request)
        if self.combination.paged:
            return needed + sum(self._worst(s.request) for s in running.values()) <= blocks.num_blocks
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
