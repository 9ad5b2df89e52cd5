"""What rank 0 tells all ranks to compute: plain numbers, complete in themselves.

A plan says everything about its step, so ranks keep no sequences and cannot disagree about them. Encoded as
64-bit integers: no pickle, no schema to negotiate between ranks of one program.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum


class PlanKind(IntEnum):
    STEP = 0
    BEAT = 1
    """Compute nothing; show that every rank is alive."""
    STOP = 2


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's part in a step: compute `token_ids` at positions from `start` on."""

    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    """At least up to the last of these tokens."""
    sample: bool
    """Whether these reach the sequence's last token, whose logits give the next."""

    @property
    def query_len(self) -> int:
        return len(self.token_ids)

    @property
    def seq_len(self) -> int:
        """Tokens in the cache after the step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of all ranks."""

    kind: PlanKind
    sequences: tuple[ScheduledSequence, ...] = ()
    scrub_blocks: tuple[int, ...] = ()
    """Blocks to be zeroed before the step."""

    @property
    def num_tokens(self) -> int:
        return sum(sequence.query_len for sequence in self.sequences)

    def encode(self) -> bytes:
        numbers = array("q", [self.kind, len(self.sequences), len(self.scrub_blocks)])
        for s in self.sequences:
            numbers.extend((len(s.token_ids), s.start, len(s.block_table), s.sample))
            numbers.extend(s.token_ids)
            numbers.extend(s.block_table)
        numbers.extend(self.scrub_blocks)
        return numbers.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> StepPlan:
        numbers = array("q")
        numbers.frombytes(data)
        kind, num_sequences, num_scrub = numbers[:3]
        at = 3
        sequences = []
        for _ in range(num_sequences):
            num_tokens, start, num_blocks, sample = numbers[at : at + 4]
            blocks_at = at + 4 + num_tokens
            tokens = tuple(numbers[at + 4 : blocks_at])
            at = blocks_at + num_blocks
            sequences.append(ScheduledSequence(tokens, start, tuple(numbers[blocks_at:at]), bool(sample)))
        return cls(PlanKind(kind), tuple(sequences), tuple(numbers[at : at + num_scrub]))
