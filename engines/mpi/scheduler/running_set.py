"""The sequences that run: who is let in, who gives way, which row and which blocks each has."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import StepDraft, is_decoding
from engines.mpi.scheduler.waiting_line import WaitingLine

_WATERMARK = 0.01
"""Share of the blocks that an optimistic admission leaves free for the growth of those that run."""


@dataclass(frozen=True, slots=True)
class AdmissionMode:
    """When a waiting sequence may run."""

    reserves: bool
    """Once all is free that it may need at worst, which is then promised; else once what it has now fits."""
    joins: bool
    """While others run; else only as one of a batch that begins together."""


ADMISSION_MODES = {
    "max_utilization": AdmissionMode(reserves=False, joins=True),
    "guaranteed_no_evict": AdmissionMode(reserves=True, joins=True),
    "static_batch": AdmissionMode(reserves=True, joins=False),
}
"""By the names of `option.batch_scheduler_policy`."""


class RunningSet:
    """Changed by the scheduler only."""

    def __init__(
        self, mode: AdmissionMode, blocks: BlockManager, waiting: WaitingLine, max_num_seqs: int
    ) -> None:
        self.waiting = waiting
        self.max_num_seqs = max_num_seqs
        self.num_preemptions = 0
        self.num_prefix_hit_tokens = 0
        self._mode = mode
        self._blocks = blocks
        self._running: dict[str, Sequence] = {}
        self._generating: dict[Sequence, None] = {}
        """Of these, those that only have their newest token to compute; beams are not among them."""
        self._free_rows: list[int] = []
        self._num_rows = 0
        self._scrub: list[int] = []
        self._copies: list[int] = []
        self._started: list[Sequence] = []
        self._num_turns = 0

    def __len__(self) -> int:
        return len(self._running)

    def sequences(self) -> list[Sequence]:
        """In the order of admission."""
        return list(self._running.values())

    def plan_decodes(self, draft: StepDraft) -> list[Sequence]:
        """Plan the newest token of every generating sequence; the step holds at least as many tokens as sequences run.
        Returns the others, which have to catch up; those that are preempted in between show by `waits`."""
        block_size = self._blocks.block_size
        decodes = list(self._generating)
        for sequence in [s for s in decodes if not s.num_computed_tokens % block_size]:
            # Its token is the first of a page.
            if not sequence.waits:
                self.make_room(sequence, len(sequence.token_ids), draft)
            draft.grown.append(sequence)
        if draft.preempted:
            decodes = [sequence for sequence in decodes if not sequence.waits]
        draft.decodes = dict.fromkeys(decodes, 1)
        if len(self._generating) == len(self._running):
            return []
        behind = []
        for sequence in self.sequences():
            if sequence in self._generating or sequence.waits or sequence.is_complete:
                continue
            if is_decoding(sequence):
                # A beam, or one that was preempted and found all but its newest token in the cache.
                self._plan_decode(sequence, draft)
            else:
                behind.append(sequence)
        return behind

    def plan_turns(
        self, max_num_tokens: int, draft: StepDraft, catch_up: Callable[[Sequence], None] | None = None
    ) -> None:
        """As `plan_decodes`, for a step that holds fewer tokens than sequences run: the policy's precedence decides who
        is served, and among equals those that were not served for the longest time, so that none stands still.

        catch_up: plans a chunk of a sequence that has to catch up, as far as there is room; None: none of them take
            part.
        """
        precedence = self.waiting.policy.precedence
        for sequence in sorted(self.sequences(), key=lambda s: (precedence(s), s.last_turn, s.number)):
            if sequence.waits or sequence.is_complete or draft.num_tokens >= max_num_tokens:
                continue
            if is_decoding(sequence):
                self._plan_decode(sequence, draft)
            elif catch_up is not None:
                catch_up(sequence)
        for sequence in (*draft.decodes, *draft.prefills):
            self._num_turns += 1
            sequence.last_turn = self._num_turns

    def generates(self, sequence: Sequence) -> None:
        """All of its tokens but the newest are computed, and from now on it gains one in each step."""
        self._generating[sequence] = None

    def completes(self, sequence: Sequence) -> None:
        """Its last token is on its way: there is nothing more to compute."""
        self._generating.pop(sequence, None)

    def take_scrub(self) -> list[int]:
        """Blocks to be zeroed before the next step; each is told once."""
        scrub, self._scrub = self._scrub, []
        return scrub

    def take_copies(self) -> list[int]:
        """Pairs of blocks, source and destination, to be copied before the next step; each is told once."""
        copies, self._copies = self._copies, []
        return copies

    def take_started(self) -> list[Sequence]:
        """Those admitted for the first time since the last call."""
        started, self._started = self._started, []
        return started

    def candidate(self) -> Sequence | None:
        """Who would be admitted next; None when nobody may be, whatever is free."""
        if len(self._running) >= self.max_num_seqs:
            return None
        if self._mode.joins:
            head = self.waiting.head()
        else:
            head = self.waiting.batch_head(self.max_num_seqs, nobody_runs=not self._running)
        if head is None or not self._running:
            return head
        if len(self._running) + 1 + len(head.companions) <= self.max_num_seqs:
            return head
        if not self._mode.joins:
            self.waiting.close_batch()
        return None

    def admit(self, sequence: Sequence, now: float) -> bool:
        """Let the candidate in; False when there is no room for it now."""
        if not self._take_blocks(sequence):
            if not self._mode.joins:
                self.waiting.close_batch()
            return False
        self.waiting.remove(sequence)
        self.waiting.policy.admitted(sequence)
        sequence.row = self._take_row()
        hits = sequence.num_computed_tokens
        sequence.num_verified_tokens = hits
        self.num_prefix_hit_tokens += hits
        if sequence.scheduled_time is None:
            sequence.scheduled_time = now
            sequence.num_cached_tokens = hits
            self._started.append(sequence)
        self._running[sequence.id] = sequence
        for companion in sequence.companions:
            companion.row = self._take_row()
            self._running[companion.id] = companion
        return True

    def replace(self, source: Sequence, sequence: Sequence) -> None:
        """It gives up what it holds and takes over all that is computed of the source."""
        former = sequence.block_table[: sequence.num_told_blocks]
        for pair in self._blocks.replace(source, sequence, source.num_computed_tokens):
            self._copies.extend(pair)
        sequence.num_verified_tokens = source.num_verified_tokens
        sequence.num_told_blocks = 0
        for old, new in zip(former, sequence.block_table, strict=False):
            if old != new:
                break
            sequence.num_told_blocks += 1

    def ready(self, sequence: Sequence, draft: StepDraft) -> bool:
        """Whether it can compute now. One with a sibling first waits for what it can take over from it."""
        sibling = sequence.sibling
        if sibling is None:
            return True
        if sequence.num_computed_tokens < sequence.num_prompt_tokens - 1 and not sibling.waits:
            if sibling.num_output_tokens == 0:
                return False
            self._take_over(sequence, sibling, draft)
        sequence.sibling = None
        return True

    def make_room(self, sequence: Sequence, num_tokens: int, draft: StepDraft) -> bool:
        """Get blocks for its first `num_tokens` tokens. Where there are none the policy's last gives way, again and
        again; False when that is the sequence itself."""
        while not self._blocks.extend(sequence, num_tokens):
            victim = self.waiting.policy.victim(s for s in self._running.values() if s.may_give_way)
            draft.drop(victim)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def remove(self, sequence: Sequence, failed: bool = False) -> None:
        """Free what it holds, running or waiting. `failed`: a step that did not end well may have written to any of
        its blocks."""
        if sequence.waits:
            self.waiting.remove(sequence)
            return
        for one in (sequence, *sequence.companions):
            if failed:
                one.num_computed_tokens = len(one.block_table) * self._blocks.block_size
            self._release(one)

    def _plan_decode(self, sequence: Sequence, draft: StepDraft) -> None:
        if self.make_room(sequence, len(sequence.token_ids), draft):
            draft.decodes[sequence] = 1
            draft.grown.append(sequence)
            if sequence.may_give_way:
                self.generates(sequence)

    def _take_blocks(self, sequence: Sequence) -> bool:
        """For a newcomer and its companions, all or none."""
        watermark = int(_WATERMARK * self._blocks.num_blocks) if self._running else 0
        reserve = self._mode.reserves or not sequence.may_give_way
        admitted: list[Sequence] = []
        for one in (sequence, *sequence.companions):
            if not self._blocks.admit(one, reserve, watermark):
                for other in admitted:
                    self._blocks.release(other)
                return False
            admitted.append(one)
        return True

    def _take_over(self, sequence: Sequence, sibling: Sequence, draft: StepDraft) -> None:
        shared = sequence.num_prompt_tokens - 1
        if shared > sibling.num_verified_tokens:
            return
        copies = self._blocks.fork(sibling, sequence, shared)
        if copies is None:
            return
        for pair in copies:
            draft.copies.extend(pair)
        sequence.num_verified_tokens = shared
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = shared

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        sequence.num_ever_computed = max(sequence.num_ever_computed, sequence.num_computed_tokens)
        sequence.prompt_logprobs.clear()
        self._release(sequence)
        self.waiting.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Blocks are scrubbed where what it computed since its last sampled token may not be finite."""
        block_size = self._blocks.block_size
        first = sequence.num_verified_tokens // block_size
        last = -(-sequence.num_computed_tokens // block_size)
        if sequence.num_verified_tokens < sequence.num_computed_tokens:
            self._scrub.extend(sequence.block_table[first:last])
        del self._running[sequence.id]
        self._generating.pop(sequence, None)
        self._blocks.release(sequence)
        heapq.heappush(self._free_rows, sequence.row)
        sequence.row = -1
        sequence.num_told_blocks = 0
        sequence.num_verified_tokens = 0
        sequence.num_in_flight = 0

    def _take_row(self) -> int:
        if self._free_rows:
            return heapq.heappop(self._free_rows)
        self._num_rows += 1
        return self._num_rows - 1
