"""What a scheduling policy decides: who is next, and who is preempted when blocks run out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from engines.mpi.scheduler.sequence import Sequence


class SchedulingPolicy(Protocol):
    """Holds the waiting sequences. Every call but `victim` and iteration costs at most O(log waiting)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in any order."""

    def add(self, sequence: Sequence) -> None:
        """It waits from now on: a newcomer, or a preempted sequence, which comes before newcomers of equal standing."""

    def remove(self, sequence: Sequence) -> None:
        """It does not wait any more: admitted, aborted, expired."""

    def head(self) -> Sequence:
        """The sequence to be admitted next, as long as nobody is added or removed and nothing is computed. Only asked
        while somebody waits."""

    def admitted(self, sequence: Sequence) -> None:
        """It runs from now on, after `remove`. Its `num_computed_tokens` are those that the prefix cache gave."""

    def computed(self, counts: Mapping[Sequence, int]) -> None:
        """A step was planned with so many tokens, prompt or output, of each of these running sequences."""

    def precedence(self, sequence: Sequence) -> int:
        """Rank a running sequence for a step that cannot hold all that run: smaller goes first, equals take turns."""

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        """Which of these running sequences, at least one, is preempted: the last in the policy's own order."""
