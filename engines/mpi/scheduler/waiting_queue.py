"""The waiting sequences: the policy's queue, and the static batch that is being filled from it."""

from __future__ import annotations

from collections import deque
from itertools import islice

from engines.mpi.scheduler.policies.base import SchedulingPolicy
from engines.mpi.scheduler.sequence import Sequence


class WaitingQueue:
    """Counts what waits; its order is the policy's."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.num_tokens = 0
        """Tokens of all waiting sequences."""
        self._newcomers: dict[Sequence, int] = {}
        """Tokens of each that has not run yet, in the order of arrival."""
        self._num_newcomer_tokens = 0
        self._batch: deque[Sequence] = deque()
        """Sequences that are still to join the static batch that began last."""

    def __len__(self) -> int:
        return len(self.policy) + len(self._batch)

    @property
    def num_newcomers(self) -> int:
        """Sequences that have not run yet."""
        return len(self._newcomers)

    @property
    def num_preempted(self) -> int:
        return len(self) - len(self._newcomers)

    def num_queued_tokens(self, num_places: int) -> int:
        """Tokens of the newcomers behind the first `num_places`. O(num_places)."""
        return self._num_newcomer_tokens - sum(islice(self._newcomers.values(), num_places))

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
        """The next sequence to be admitted, whatever runs."""
        return self.policy.head() if len(self.policy) else None

    def batch_head(self, max_num_seqs: int, begin: bool) -> Sequence | None:
        """The next sequence of the static batch. begin: where none is left, a batch begins of all that wait now."""
        if begin and not self._batch:
            for _ in range(min(len(self.policy), max_num_seqs)):
                sequence = self.policy.head()
                self.policy.remove(sequence)
                self._batch.append(sequence)
        return self._batch[0] if self._batch else None

    def close_batch(self) -> None:
        """The batch is as large as it gets; the others wait for the next one."""
        while self._batch:
            self.policy.add(self._batch.popleft())

    def change_policy(self, policy: SchedulingPolicy) -> None:
        """All that wait move, in the order of arrival."""
        for sequence in sorted(self.policy, key=lambda sequence: sequence.number):
            policy.add(sequence)
        self.policy = policy
