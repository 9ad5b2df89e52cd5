"""A step: the draft that the planner fills, and the finished step that the ranks run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step_plan import (
    UNKNOWN_TOKEN,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_PROMPT_LOGPROBS,
    PlanKind,
    StepPlan,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A plan and its sequences: `sequences[i]` owns `plan.rows[i]`."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    num_decodes: int
    """Number of leading sequences that decode: each computes one token and gains the next."""

    @property
    def prefills(self) -> Iterable[tuple[Sequence, int, int, int]]:
        """The remaining sequences (prefills), each with its start position, number of tokens and `WANT_*` flags."""
        plan, decodes = self.plan, self.num_decodes
        return zip(
            self.sequences[decodes:],
            plan.starts[decodes:],
            plan.query_lens[decodes:],
            plan.wants[decodes:],
            strict=True,
        )

    @property
    def sampled(self) -> tuple[Sequence, ...]:
        """The sequences that gain a token, in the plan's order."""
        if self.num_decodes == len(self.sequences):
            return self.sequences
        others = [sequence for sequence, _, _, want in self.prefills if want & WANT_LOGITS]
        return (*self.sequences[: self.num_decodes], *others)

    @property
    def scored(self) -> list[tuple[Sequence, int, int]]:
        """Sequences whose prompt log-probabilities are wanted, each with the half-open range of its positions in
        this step."""
        return [
            (sequence, start, start + count)
            for sequence, start, count, want in self.prefills
            if want & WANT_PROMPT_LOGPROBS
        ]

    def with_known_tokens(self) -> Step:
        """Return the step with its unknown tokens filled in. The steps before it must have ended."""
        tokens, at = list(self.plan.token_ids), 0
        for sequence, start, count in zip(
            self.sequences, self.plan.starts, self.plan.query_lens, strict=True
        ):
            if tokens[at] == UNKNOWN_TOKEN:
                tokens[at] = sequence.token_ids[start]
            at += count
        return replace(self, plan=replace(self.plan, token_ids=tokens))

    def halves(self) -> tuple[Step, Step]:
        """Split the step into two with the same tokens. Table updates and copies were applied when the whole step
        was tried."""
        middle, end = len(self.sequences) // 2, len(self.sequences)
        decodes = min(self.num_decodes, middle)
        return (
            Step(self.plan.part(0, middle), self.sequences[:middle], decodes),
            Step(self.plan.part(middle, end), self.sequences[middle:], self.num_decodes - decodes),
        )


class StepDraft:
    """Number of tokens planned for each sequence so far. Lives for one call of `StepPlanner.schedule`."""

    def __init__(self) -> None:
        self.decodes: dict[Sequence, int] = {}
        """Decoding sequences, each with 1 token: its newest."""
        self.prefills: dict[Sequence, int] = {}
        """Prefilling sequences and their numbers of tokens."""
        self.num_prefill_tokens = 0
        self.grown: list[Sequence] = []
        """Decoding sequences whose block tables may have new entries."""
        self.preempted = False
        """True when a sequence had to be preempted."""

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + self.num_prefill_tokens

    def add_prefill(self, sequence: Sequence, count: int) -> None:
        self.prefills[sequence] = count
        self.num_prefill_tokens += count

    def drop(self, sequence: Sequence) -> None:
        """Remove a preempted sequence from the step."""
        self.preempted = True
        self.decodes.pop(sequence, None)
        self.num_prefill_tokens -= self.prefills.pop(sequence, 0)

    def finish(self, copies: list[int]) -> Step:
        """Build the step, with the block-table entries that the ranks do not know yet."""
        # Comprehensions for speed: this runs for hundreds of sequences in every step.
        decodes, prefills = self.decodes, self.prefills
        sequences = (*decodes, *prefills)
        starts = [s.num_computed_tokens for s in sequences]
        token_ids = [s.token_ids[-1] for s in decodes]
        for (sequence, count), start in zip(prefills.items(), starts[len(decodes) :], strict=True):
            token_ids.extend(sequence.token_ids[start : start + count])
        updates: list[int] = []
        for sequence in (*self.grown, *prefills):
            reported, num_blocks = sequence.num_reported_blocks, len(sequence.block_table)
            if reported < num_blocks:
                updates.extend((sequence.row, reported, num_blocks - reported))
                updates.extend(sequence.block_table[reported:])
                sequence.num_reported_blocks = num_blocks
        plan = StepPlan(
            PlanKind.STEP,
            [s.row for s in sequences],
            starts,
            [*decodes.values(), *prefills.values()],
            [s.want for s in decodes] + [_wants(*each) for each in prefills.items()],
            token_ids,
            updates,
            copies,
        )
        return Step(plan, sequences, len(decodes))


def _wants(sequence: Sequence, count: int) -> int:
    num_tokens = len(sequence.token_ids)
    reaches_end = sequence.num_computed_tokens + count == num_tokens
    want = sequence.want if reaches_end else WANT_NOTHING
    if sequence.request.sampling.prompt_logprobs is not None and num_tokens == sequence.num_prompt_tokens:
        want |= WANT_PROMPT_LOGPROBS
    return want
