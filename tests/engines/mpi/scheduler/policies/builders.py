"""Sequences for tests of the policies, without blocks or an engine."""

from __future__ import annotations

import random
from collections import deque

from engines.core import Request, SamplingParams
from engines.mpi.scheduler.policies.base import SchedulingPolicy
from engines.mpi.scheduler.policies.fair import OUTPUT_WEIGHT, PROMPT_WEIGHT
from engines.mpi.scheduler.sequence import Sequence


def make_sequence(
    number: int, tenant: str = "", priority: int = 0, num_prompt_tokens: int = 1, num_output_tokens: int = 8
) -> Sequence:
    request = Request(
        f"r{number}",
        (1,) * num_prompt_tokens,
        SamplingParams(num_output_tokens),
        0.0,
        priority=priority,
        tenant=tenant,
    )
    return Sequence(request, number)


def admit_head(policy: SchedulingPolicy) -> Sequence:
    """Admit the head of the policy as the scheduler does."""
    sequence = policy.head()
    policy.remove(sequence)
    policy.record_admission(sequence)
    sequence.row = 0
    return sequence


def compute(policy: SchedulingPolicy, sequence: Sequence, num_tokens: int) -> None:
    """Compute tokens of a running sequence. It gains its next token when all its tokens are computed."""
    policy.record_computed({sequence: num_tokens})
    sequence.num_computed_tokens += num_tokens
    if sequence.num_computed_tokens == sequence.num_tokens:
        sequence.token_ids.append(1)


def preempt(policy: SchedulingPolicy, sequence: Sequence) -> None:
    sequence.num_preemptions += 1
    sequence.num_ever_computed = max(sequence.num_ever_computed, sequence.num_computed_tokens)
    sequence.num_computed_tokens = 0
    sequence.row = -1
    policy.add(sequence)


class Server:
    """Runs up to `num_places` sequences: whole prompts, then one token per step. Records the service of each tenant."""

    def __init__(self, policy: SchedulingPolicy, num_places: int, seed: int, longest: int = 20) -> None:
        self.policy = policy
        self.served: dict[str, int] = {}
        self.admitted: deque[Sequence] = deque()
        self._num_places = num_places
        self._running: list[Sequence] = []
        self._random = random.Random(seed)
        self._longest = longest
        self._num_arrived = 0

    def arrive(self, tenant: str) -> Sequence:
        lengths = self._random.randint(1, self._longest), self._random.randint(1, self._longest)
        sequence = make_sequence(self._num_arrived, tenant, 0, *lengths)
        self._num_arrived += 1
        self.policy.add(sequence)
        return sequence

    def step(self) -> None:
        while len(self._running) < self._num_places and len(self.policy):
            sequence = admit_head(self.policy)
            self._serve(sequence, PROMPT_WEIGHT * sequence.num_prompt_tokens)
            self._running.append(sequence)
            self.admitted.append(sequence)
        for sequence in self._running:
            if sequence.num_output_tokens:
                self._serve(sequence, OUTPUT_WEIGHT)
            compute(self.policy, sequence, sequence.num_tokens - sequence.num_computed_tokens)
        self._running = [s for s in self._running if s.num_tokens < s.max_num_tokens]

    def _serve(self, sequence: Sequence, cost: int) -> None:
        tenant = sequence.request.tenant
        self.served[tenant] = self.served.get(tenant, 0) + cost
