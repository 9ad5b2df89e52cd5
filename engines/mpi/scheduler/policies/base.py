"""The interface of scheduling policies: which sequence is admitted next, and which is preempted when blocks run out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from engines.mpi.scheduler.sequence import Sequence


class SchedulingPolicy(Protocol):
    """Queue of the waiting sequences. Every call but `victim` and iteration costs at most O(log waiting)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over all waiting sequences, in any order."""

    def add(self, sequence: Sequence) -> None:
        """Add a newcomer or a preempted sequence. A preempted sequence comes before newcomers of equal standing."""

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that was admitted, aborted or has expired."""

    def head(self) -> Sequence:
        """Return the sequence to admit next. The result does not change until a sequence is added or removed, or
        tokens are computed. Called only while sequences wait."""

    def record_admission(self, sequence: Sequence) -> None:
        """Record that a sequence runs, after `remove`. Its `num_computed_tokens` are the tokens found in the prefix
        cache."""

    def record_computed(self, counts: Mapping[Sequence, int]) -> None:
        """Record that a step was planned with this many tokens, prompt or output, of each running sequence."""

    def precedence(self, sequence: Sequence) -> int:
        """Rank a sequence for a step that cannot hold all of them: smaller goes first, equals take turns."""

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        """Select the sequence to preempt from these running ones (at least one): the last in the policy's order."""
