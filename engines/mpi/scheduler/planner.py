"""Who computes what in the next step: continuous (rolling) batching after Orca (Yu et al., OSDI 2022).

One rule: `num_computed_tokens` catches up with `num_tokens`. There is no prefill and no decode phase. Whether prompts
ride with decodes or make them wait is the prefill mode's decision, who is next the policy's, when there is room the
admission mode's, and which blocks a sequence gets the block manager's.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from engines.config import SchedulerConfig
from engines.core import SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.scheduler.policies import POLICIES
from engines.mpi.scheduler.prefill import make_prefill_mode
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import Step, StepDraft
from engines.mpi.scheduler.waiting_queue import WaitingQueue

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


class StepPlanner:
    """The running sequences. `schedule` is a step's way from top to bottom."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self.settings = config.settings
        self.waiting = WaitingQueue(POLICIES[config.settings.scheduling_policy]())
        self.running: dict[str, Sequence] = {}
        """By id, in the order of admission."""
        self.started: list[Sequence] = []
        """Sequences admitted for the first time; whoever reads them clears the list."""
        self.num_preemptions = 0
        self.num_prefix_hit_tokens = 0
        self.num_recomputed_tokens = 0
        self._admission = ADMISSION_MODES[config.batch_scheduler_policy]
        self._prefill = make_prefill_mode(config.settings.chunked_prefill)
        self._blocks = blocks
        self._generating: dict[Sequence, None] = {}
        """Running sequences with only their newest token to compute, beams apart."""
        self._free_rows: list[int] = []
        """A heap of rows that were used before."""
        self._copies: list[int] = []
        """Pairs of blocks, source and destination, to be copied before the next step."""
        self._num_turns = 0
        self._num_decode_steps = 0
        """Since the last step with prompts."""

    def reconfigure(self, settings: SchedulerSettings) -> None:
        """From the next step on. Nobody is sent away: a smaller limit only lets nobody in until it holds."""
        if settings.scheduling_policy != self.settings.scheduling_policy:
            self.waiting.change_policy(POLICIES[settings.scheduling_policy]())
        if settings.chunked_prefill != self.settings.chunked_prefill:
            self._prefill = make_prefill_mode(settings.chunked_prefill)
            self._num_decode_steps = 0
        self.settings = settings

    def schedule(self) -> Step | None:
        """Plan the next step; None when there is nothing to compute."""
        draft = StepDraft()
        settings, mode = self.settings, self._prefill
        others = self._not_generating()
        behind = [sequence for sequence in others if not sequence.is_decoding]
        if mode.pauses_decodes and (
            behind or mode.is_due(len(self.running), len(self.waiting), self._num_decode_steps, settings)
        ):
            self._catch_up(behind, draft)
            self._admit_newcomers(draft)
        if not draft.prefills:
            if len(self.running) > settings.max_num_batched_tokens:
                self._take_turns(draft)
            else:
                self._decode(others, draft)
                if not mode.pauses_decodes:
                    self._catch_up(behind, draft)
            if not mode.pauses_decodes:
                self._admit_newcomers(draft)
        self._num_decode_steps = 0 if draft.prefills else self._num_decode_steps + 1
        return self._finish(draft)

    def _not_generating(self) -> list[Sequence]:
        """Running sequences that have something to compute and are not in `_generating`: those that catch up, beams,
        and sequences that were preempted and found all but their newest token in the cache."""
        generating = self._generating
        if len(generating) == len(self.running):
            return []
        return [
            s
            for s in self.running.values()
            if s not in generating and s.num_computed_tokens < len(s.token_ids) and not s.is_complete
        ]

    def _decode(self, others: list[Sequence], draft: StepDraft) -> None:
        """Plan the newest token of every generating sequence. The step holds as many tokens as sequences run."""
        block_size = self._blocks.block_size
        decodes = list(self._generating)
        for sequence in [s for s in decodes if not s.num_computed_tokens % block_size]:
            # Its token is the first of a page.
            if not sequence.waits:
                self._make_room(sequence, len(sequence.token_ids), draft)
            draft.grown.append(sequence)
        if draft.preempted:
            decodes = [sequence for sequence in decodes if not sequence.waits]
        draft.decodes = dict.fromkeys(decodes, 1)
        for sequence in others:
            if sequence.is_decoding and not sequence.waits:
                self._decode_one(sequence, draft)

    def _decode_one(self, sequence: Sequence, draft: StepDraft) -> None:
        if self._make_room(sequence, len(sequence.token_ids), draft):
            draft.decodes[sequence] = 1
            draft.grown.append(sequence)
            if not sequence.is_beam:
                self.generates(sequence)

    def _take_turns(self, draft: StepDraft) -> None:
        """Plan a step that holds fewer tokens than sequences run. The policy's precedence decides who is served, and
        among equals those that were not served for the longest time, so that none stands still."""
        precedence = self.waiting.policy.precedence
        for sequence in sorted(self.running.values(), key=lambda s: (precedence(s), s.last_turn, s.number)):
            if sequence.waits or sequence.is_complete:
                continue
            if draft.num_tokens >= self.settings.max_num_batched_tokens:
                break
            if sequence.is_decoding:
                self._decode_one(sequence, draft)
            elif not self._prefill.pauses_decodes:
                self._catch_up([sequence], draft)
        for sequence in (*draft.decodes, *draft.prefills):
            self._num_turns += 1
            sequence.last_turn = self._num_turns

    def _catch_up(self, behind: list[Sequence], draft: StepDraft) -> None:
        """Plan chunks of sequences that have more to compute than their newest token, as far as the budgets go."""
        for sequence in behind:
            if sequence.waits or not self._is_ready(sequence):
                continue
            start = sequence.num_computed_tokens
            count = self._chunk(sequence.num_tokens - start, draft)
            if count and self._make_room(sequence, start + count, draft):
                draft.add_prefill(sequence, count)

    def _chunk(self, num_missing: int, draft: StepDraft) -> int:
        return self._prefill.chunk(num_missing, draft.num_prefill_tokens, draft.num_tokens, self.settings)

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether it can compute now. A sequence with a sibling first waits for what it can take over from it."""
        sibling, last = sequence.sibling, sequence.num_prompt_tokens - 1
        if sibling is None:
            return True
        if sequence.num_computed_tokens < last and not sibling.waits:
            if sibling.num_output_tokens == 0:
                return False
            taken = last <= sibling.num_settled_tokens and self._fork(sibling, sequence, last)
            if taken and sequence.num_preemptions == 0:
                sequence.num_cached_tokens = last
        sequence.sibling = None
        return True

    def _admit_newcomers(self, draft: StepDraft) -> None:
        """Let waiting sequences in, as long as there are places, blocks and budget, and plan their first chunks."""
        while not draft.preempted and self._chunk(1, draft):
            candidate = self._candidate()
            if candidate is None or not self._chunk(candidate.num_tokens, draft):
                return
            if not self._take_blocks(candidate):
                self._close_batch()
                return
            self._start(candidate)
            self._catch_up([candidate], draft)

    def _candidate(self) -> Sequence | None:
        """The sequence to be admitted next; None when nobody may be, whatever is free."""
        num_running, limit = len(self.running), self.settings.max_num_seqs
        if num_running >= limit:
            return None
        joins = self._admission.joins
        head = self.waiting.head() if joins else self.waiting.batch_head(limit, begin=not num_running)
        if head is None or not num_running or num_running + 1 + len(head.companions) <= limit:
            return head
        self._close_batch()
        return None

    def _close_batch(self) -> None:
        if not self._admission.joins:
            self.waiting.close_batch()

    def _take_blocks(self, sequence: Sequence) -> bool:
        """For a newcomer and its companions, all or none."""
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
        """It has its blocks, and runs from now on."""
        self.waiting.remove(sequence)
        self.waiting.policy.admitted(sequence)
        hits = sequence.num_computed_tokens
        if sequence.num_preemptions == 0:
            self.num_prefix_hit_tokens += hits
            sequence.num_cached_tokens = hits
            self.started.append(sequence)
        for one in (sequence, *sequence.companions):
            # Without a free row all below are in use.
            one.row = heapq.heappop(self._free_rows) if self._free_rows else len(self.running)
            self.running[one.id] = one

    def _make_room(self, sequence: Sequence, num_tokens: int, draft: StepDraft) -> bool:
        """Get blocks for its first `num_tokens` tokens. Where there are none the policy's last is preempted, again and
        again; False when that is the sequence itself."""
        while not self._blocks.extend(sequence, num_tokens):
            victim = self.waiting.policy.victim(s for s in self.running.values() if not s.is_beam)
            draft.drop(victim)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        sequence.num_ever_computed = max(sequence.num_ever_computed, sequence.num_computed_tokens)
        sequence.prompt_logprobs.clear()
        self._release(sequence)
        self.waiting.add(sequence)

    def _finish(self, draft: StepDraft) -> Step | None:
        if not draft.num_tokens:
            return None
        if draft.prefills:
            for sequence, count in draft.prefills.items():
                again = min(count, sequence.num_ever_computed - sequence.num_computed_tokens)
                self.num_recomputed_tokens += max(0, again)
            self.waiting.policy.computed(draft.prefills)
        self.waiting.policy.computed(draft.decodes)
        copies, self._copies = self._copies, []
        return draft.finish(copies)

    def generates(self, sequence: Sequence) -> None:
        """All of its tokens but the newest are computed, and from now on it gains one in each step."""
        self._generating[sequence] = None
        self._blocks.free_unseen(sequence)

    def completes(self, sequence: Sequence) -> None:
        """Its last token is on its way: there is nothing more to compute."""
        self._generating.pop(sequence, None)

    def replace(self, source: Sequence, sequence: Sequence) -> None:
        """A beam gives up what it holds and takes over all that is computed of the source."""
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
        """It ends with its first token: those that wait for its prompt take that over before its blocks are free."""
        for one in self.running.values():
            if one.sibling is sequence:
                self._is_ready(one)

    def remove(self, sequence: Sequence) -> None:
        """Free what it holds, running or waiting."""
        if sequence.waits:
            self.waiting.remove(sequence)
            return
        for one in (sequence, *sequence.companions):
            self._release(one)

    def _release(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self._generating.pop(sequence, None)
        self._blocks.release(sequence)
        heapq.heappush(self._free_rows, sequence.row)
        sequence.row = -1
        sequence.num_reported_blocks = 0
        sequence.num_in_flight = 0

    def check(self) -> None:
        """Raises RuntimeError when rows and running sequences do not agree."""
        rows = [sequence.row for sequence in self.running.values()]
        if sorted((*rows, *self._free_rows)) != list(range(len(rows) + len(self._free_rows))):
            raise RuntimeError(
                f"rows {rows} are in use and {self._free_rows} free: one is lost or used twice"
            )
        if not self._generating.keys() <= set(self.running.values()):
            raise RuntimeError("a sequence generates that does not run")
