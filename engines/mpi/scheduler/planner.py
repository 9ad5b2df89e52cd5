"""Step planning: select the sequences and tokens of the next step. Continuous (rolling) batching after Orca (Yu et al.,
OSDI 2022).

One rule: `num_computed_tokens` catches up with `num_tokens`. There are no separate prefill and decode phases. The
prefill mode decides whether prompts share steps with decodes or pause them. The policy decides which sequence is next,
the admission mode when there is room for it, and the block manager which blocks it gets.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from engines.config import SchedulerConfig
from engines.core import SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.scheduler import prefill
from engines.mpi.scheduler.policies import POLICIES
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import Step, StepDraft
from engines.mpi.scheduler.waiting_queue import WaitingQueue

_WATERMARK = 0.01
"""Share of the blocks that optimistic admission leaves free for the growth of running sequences."""


@dataclass(frozen=True, slots=True)
class AdmissionMode:
    """Conditions for the admission of a waiting sequence."""

    reserves: bool
    """True: the blocks for its worst case must be free, and are reserved. False: only its current tokens must fit."""
    joins: bool
    """True: it may join running sequences. False: it only starts as part of a batch that starts together."""


ADMISSION_MODES = {
    "max_utilization": AdmissionMode(reserves=False, joins=True),
    "guaranteed_no_evict": AdmissionMode(reserves=True, joins=True),
    "static_batch": AdmissionMode(reserves=True, joins=False),
}
"""Admission modes by the names of `option.batch_scheduler_policy`."""


class StepPlanner:
    """The waiting and running sequences, and the plan of each step. Start reading at `schedule`."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self.settings = config.settings
        self.waiting = WaitingQueue(POLICIES[config.settings.scheduling_policy]())
        self.running: dict[str, Sequence] = {}
        """Running sequences by id, in the order of admission."""
        self.started: list[Sequence] = []
        """Sequences admitted for the first time. The reader clears the list."""
        self.is_blocked = False
        """Whether the next sequence could not be admitted although a place was free, for lack of blocks or because a
        static batch runs."""
        self.num_preemptions = 0
        """Preemptions of sequences that had computed tokens."""
        self.num_prefix_hit_tokens = 0
        self.num_recomputed_tokens = 0
        self._admission = ADMISSION_MODES[config.batch_scheduler_policy]
        self._blocks = blocks
        self._decoding: dict[Sequence, None] = {}
        """Running sequences that have only their newest token to compute, without beams."""
        self._free_rows: list[int] = []
        """Heap of free rows that were used before."""
        self._copies: list[int] = []
        """Blocks to copy before the next step: source, destination, source, destination, ..."""
        self._num_turns = 0
        self._num_decode_steps = 0
        """Steps since the last one with prefills."""

    def reconfigure(self, settings: SchedulerSettings) -> None:
        """Apply new settings from the next step on. Running sequences are not evicted: a smaller limit only stops
        admission until it is met."""
        if settings.scheduling_policy != self.settings.scheduling_policy:
            self.waiting.change_policy(POLICIES[settings.scheduling_policy]())
        if settings.chunked_prefill != self.settings.chunked_prefill:
            self._num_decode_steps = 0
        self.settings = settings

    def schedule(self) -> Step | None:
        """Plan the next step. Returns None when there is nothing to compute."""
        draft = StepDraft()
        settings = self.settings
        others = self._other_sequences()
        prefilling = [sequence for sequence in others if not sequence.is_decoding]
        if prefill.decodes_pause(
            len(prefilling), len(self.running), len(self.waiting), self._num_decode_steps, settings
        ):
            self._plan_prompts(prefilling, draft)
        if not draft.prefills:
            if len(self.running) > settings.max_num_batched_tokens:
                self._take_turns(draft)
                prefilling = []
            else:
                self._plan_decodes(others, draft)
            if settings.chunked_prefill:
                self._plan_prompts(prefilling, draft)
        self._num_decode_steps = 0 if draft.prefills else self._num_decode_steps + 1
        return self._finish(draft)

    def _other_sequences(self) -> list[Sequence]:
        """Return the running sequences that have tokens to compute and are not in `_decoding`: prefills, beams,
        and preempted sequences that found all but their newest token in the prefix cache."""
        decoding = self._decoding
        if len(decoding) == len(self.running):
            return []
        return [
            s
            for s in self.running.values()
            if s not in decoding and s.num_computed_tokens < len(s.token_ids) and not s.is_complete
        ]

    def _plan_decodes(self, others: list[Sequence], draft: StepDraft) -> None:
        """Plan the newest token of every decoding sequence. The step has room for one token of each running
        sequence."""
        block_size = self._blocks.block_size
        decodes = list(self._decoding)
        for sequence in [s for s in decodes if not s.num_computed_tokens % block_size]:
            # The newest token is the first of a page.
            if not sequence.is_waiting:
                self._make_room(sequence, len(sequence.token_ids), draft)
            draft.grown.append(sequence)
        if draft.preempted:
            decodes = [sequence for sequence in decodes if not sequence.is_waiting]
        draft.decodes = dict.fromkeys(decodes, 1)
        for sequence in others:
            if sequence.is_decoding and not sequence.is_waiting:
                self._plan_decode(sequence, draft)

    def _plan_decode(self, sequence: Sequence, draft: StepDraft) -> None:
        if self._make_room(sequence, len(sequence.token_ids), draft):
            draft.decodes[sequence] = 1
            draft.grown.append(sequence)
            if not sequence.is_beam:
                self.mark_decoding(sequence)

    def _take_turns(self, draft: StepDraft) -> None:
        """Plan a step that has room for fewer tokens than there are running sequences. The policy's precedence
        decides which sequences are served. Among equals, the longest unserved go first, so that none starves."""
        precedence = self.waiting.policy.precedence
        for sequence in sorted(self.running.values(), key=lambda s: (precedence(s), s.last_turn, s.number)):
            if sequence.is_waiting or sequence.is_complete:
                continue
            if draft.num_tokens >= self.settings.max_num_batched_tokens:
                break
            if sequence.is_decoding:
                self._plan_decode(sequence, draft)
            elif self.settings.chunked_prefill:
                self._plan_prefill(sequence, draft)
        for sequence in (*draft.decodes, *draft.prefills):
            self._num_turns += 1
            sequence.last_turn = self._num_turns

    def _plan_prompts(self, prefilling: list[Sequence], draft: StepDraft) -> None:
        """Plan chunks of running and of waiting sequences. A waiting one goes first if the policy gives it precedence;
        else a long prompt would delay it until its end."""
        precedence = self.waiting.policy.precedence
        for sequence in sorted(prefilling, key=precedence):
            self._admit_waiting(draft, before=precedence(sequence))
            self._plan_prefill(sequence, draft)
        self._admit_waiting(draft)

    def _plan_prefill(self, sequence: Sequence, draft: StepDraft) -> None:
        """Plan a prefill chunk of a sequence, as far as the budgets allow."""
        if sequence.is_waiting or not self._is_ready(sequence):
            return
        start = sequence.num_computed_tokens
        count = self._chunk_size(sequence.num_tokens - start, draft)
        if count and self._make_room(sequence, start + count, draft):
            draft.add_prefill(sequence, count)

    def _chunk_size(self, num_missing: int, draft: StepDraft) -> int:
        return prefill.chunk_size(num_missing, draft.num_prefill_tokens, draft.num_tokens, self.settings)

    def _is_ready(self, sequence: Sequence) -> bool:
        """Return whether the sequence can compute now. A sequence with a sibling waits until it can take over the
        sibling's pages."""
        sibling, last = sequence.sibling, sequence.num_prompt_tokens - 1
        if sibling is None:
            return True
        if sequence.num_computed_tokens < last and not sibling.is_waiting:
            if sibling.num_output_tokens == 0:
                return False
            taken = last <= sibling.num_settled_tokens and self._fork(sibling, sequence, last)
            if taken and sequence.num_preemptions == 0:
                sequence.num_cached_tokens = last
        sequence.sibling = None
        return True

    def _admit_waiting(self, draft: StepDraft, before: int | None = None) -> None:
        """Admit waiting sequences while there are places, blocks and budget, and plan their first chunks.

        before: admit only sequences with a smaller precedence.
        """
        while not draft.preempted and self._chunk_size(1, draft):
            candidate = self._candidate()
            if candidate is None:
                self.is_blocked = len(self.waiting) > 0 and len(self.running) < self.settings.max_num_seqs
                return
            if before is not None and self.waiting.policy.precedence(candidate) >= before:
                return
            if not self._chunk_size(candidate.num_tokens, draft):
                return
            self.is_blocked = not self._take_blocks(candidate)
            if self.is_blocked:
                self.waiting.close_batch()
                return
            self._start(candidate)
            self._plan_prefill(candidate, draft)

    def _candidate(self) -> Sequence | None:
        """Return the sequence to admit next; None when none may be admitted, regardless of free blocks."""
        num_running, limit = len(self.running), self.settings.max_num_seqs
        if num_running >= limit:
            return None
        joins = self._admission.joins
        head = self.waiting.head() if joins else self.waiting.batch_head(limit, begin=not num_running)
        if head is None or not num_running or num_running + 1 + len(head.companions) <= limit:
            return head
        self.waiting.close_batch()
        return None

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Allocate blocks for a waiting sequence and its companions. Returns False, with nothing allocated, when they
        do not all fit."""
        watermark = int(_WATERMARK * self._blocks.num_blocks) if self.running else 0
        reserve = self._admission.reserves or sequence.is_beam
        admitted: list[Sequence] = []
        for one in (sequence, *sequence.companions):
            if not self._blocks.admit(one, reserve, watermark):
                for other in admitted:
                    self._blocks.release(other)
                return False
            admitted.append(one)
        return True

    def _start(self, sequence: Sequence) -> None:
        """Move a sequence that got its blocks from the waiting to the running ones."""
        self.waiting.remove(sequence)
        self.waiting.policy.record_admission(sequence)
        hits = sequence.num_computed_tokens
        if sequence.num_preemptions == 0:
            self.num_prefix_hit_tokens += hits
            sequence.num_cached_tokens = hits
            self.started.append(sequence)
        for one in (sequence, *sequence.companions):
            # Without a free row, all rows below this one are in use.
            one.row = heapq.heappop(self._free_rows) if self._free_rows else len(self.running)
            self.running[one.id] = one

    def _make_room(self, sequence: Sequence, num_tokens: int, draft: StepDraft) -> bool:
        """Allocate blocks for the first `num_tokens` tokens of the sequence, preempting the policy's victims until
        they fit. Returns False when the sequence itself was preempted."""
        while not self._blocks.extend(sequence, num_tokens):
            victim = self.waiting.policy.victim(s for s in self.running.values() if not s.is_beam)
            draft.drop(victim)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += sequence.num_computed_tokens > 0
        sequence.num_preemptions += 1
        sequence.num_ever_computed = max(sequence.num_ever_computed, sequence.num_computed_tokens)
        sequence.prompt_logprobs.clear()
        self._release(sequence)
        self.waiting.add(sequence)

    def _finish(self, draft: StepDraft) -> Step | None:
        if not draft.num_tokens:
            return None
        for sequence, count in draft.prefills.items():
            num_recomputed = min(count, sequence.num_ever_computed - sequence.num_computed_tokens)
            self.num_recomputed_tokens += max(0, num_recomputed)
        self.waiting.policy.record_computed(draft.prefills)
        self.waiting.policy.record_computed(draft.decodes)
        copies, self._copies = self._copies, []
        return draft.finish(copies)

    def mark_decoding(self, sequence: Sequence) -> None:
        """Mark a sequence as decoding: all its tokens but the newest are computed, and each step adds one."""
        self._decoding[sequence] = None
        self._blocks.free_out_of_window(sequence)

    def mark_complete(self, sequence: Sequence) -> None:
        """Mark that the last token of a sequence is in flight, so nothing is left to compute."""
        self._decoding.pop(sequence, None)

    def replace(self, source: Sequence, sequence: Sequence) -> None:
        """Free what a beam holds, and take over all computed tokens of the source."""
        former = sequence.block_table[: sequence.num_reported_blocks]
        self._fork(source, sequence, source.num_computed_tokens)
        sequence.num_reported_blocks = 0
        for old, new in zip(former, sequence.block_table, strict=False):
            if old != new:
                break
            sequence.num_reported_blocks += 1

    def _fork(self, source: Sequence, sequence: Sequence, num_tokens: int) -> bool:
        copies = self._blocks.fork(source, sequence, num_tokens)
        for pair in copies or ():
            self._copies.extend(pair)
        return copies is not None

    def share_prompt(self, sequence: Sequence) -> None:
        """Let sequences that wait for this sibling's prompt take it over. Called for a sequence that ends with its
        first token, before its blocks are freed."""
        for one in self.running.values():
            if one.sibling is sequence:
                self._is_ready(one)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, running or waiting, and free everything it holds."""
        if sequence.is_waiting:
            self.waiting.remove(sequence)
        else:
            for one in (sequence, *sequence.companions):
                self._release(one)
        self.is_blocked = self.is_blocked and len(self.waiting) > 0

    def _release(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self._decoding.pop(sequence, None)
        self._blocks.release(sequence)
        heapq.heappush(self._free_rows, sequence.row)
        sequence.row = -1
        sequence.num_reported_blocks = 0
        sequence.num_in_flight = 0

    def check(self) -> None:
        """Raise RuntimeError when rows and running sequences do not agree."""
        rows = [sequence.row for sequence in self.running.values()]
        if sorted((*rows, *self._free_rows)) != list(range(len(rows) + len(self._free_rows))):
            raise RuntimeError(
                f"rows {rows} are in use and {self._free_rows} are free: one is missing or used twice"
            )
        if not self._decoding.keys() <= set(self.running.values()):
            raise RuntimeError("a sequence that is not running generates tokens")
