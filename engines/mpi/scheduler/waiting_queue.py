"""The waiting sequences: the policy's queue, and the static batch that is filled from it."""

from __future__ import annotations

from collections import deque

from engines.mpi.scheduler.policies.base import SchedulingPolicy
from engines.mpi.scheduler.sequence import Sequence


class WaitingQueue:
    """Waiting sequences, with counts of sequences and tokens. The policy decides the order."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.num_tokens = 0
        """Tokens of all waiting sequences."""
        self._newcomers: dict[Sequence, int] = {}
        """Sequences that have not run yet and their numbers of tokens, in the order of arrival."""
        self._num_newcomer_tokens = 0
        self._batch: deque[Sequence] = deque()
        """Sequences still to join the static batch that started last."""

    def __len__(self) -> int:
        return len(self.policy) + len(self._batch)

    @property
    def num_newcomers(self) -> int:
        """Sequences that have not run yet."""
        return len(self._newcomers)

    @property
    def num_preempted(self) -> int:
        return len(self) - len(self._newcomers)

    def queued(self, num_free_places: int) -> tuple[int, int]:
        """Return the number of newcomers that have to wait while `num_free_places` more sequences may run, and their
        tokens. A newcomer takes a place for each of its beams. O(num_free_places)."""
        count, num_tokens = len(self._newcomers), self._num_newcomer_tokens
        for sequence, tokens in self._newcomers.items():
            num_free_places -= 1 + len(sequence.companions)
            if num_free_places < 0:
                break
            count -= 1
            num_tokens -= tokens
        return count, num_tokens

    def add(self, sequence: Sequence) -> None:
        self.num_tokens += sequence.num_tokens
        if not sequence.num_preemptions:
            self._newcomers[sequence] = sequence.num_tokens
            self._num_newcomer_tokens += sequence.num_tokens
        self.policy.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self.num_tokens -= sequence.num_tokens
        self._num_newcomer_tokens -= self._newcomers.pop(sequence, 0)
        if sequence in self._batch:
            self._batch.remove(sequence)
        else:
            self.policy.remove(sequence)

    def head(self) -> Sequence | None:
        """Return the next sequence to admit, regardless of what runs; None when there is none."""
        return self.policy.head() if len(self.policy) else None

    def batch_head(self, max_num_seqs: int, begin: bool) -> Sequence | None:
        """Return the next sequence of the static batch.

        begin: when no sequence of the batch is left, start a new batch with all sequences that wait now, up to
        `max_num_seqs`.
        """
        if begin and not self._batch:
            for _ in range(min(len(self.policy), max_num_seqs)):
                sequence = self.policy.head()
                self.policy.remove(sequence)
                self._batch.append(sequence)
        return self._batch[0] if self._batch else None

    def close_batch(self) -> None:
        """Close the batch: its remaining sequences go back to the queue and wait for the next batch."""
        while self._batch:
            self.policy.add(self._batch.popleft())

    def change_policy(self, policy: SchedulingPolicy) -> None:
        """Move all waiting sequences to another policy, in the order of arrival."""
        for sequence in sorted(self.policy, key=lambda sequence: sequence.number):
            policy.add(sequence)
        self.policy = policy
