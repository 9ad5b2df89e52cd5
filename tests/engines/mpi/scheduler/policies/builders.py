"""Sequences for tests of the policies, without blocks or an engine."""

from __future__ import annotations

from engines.core import Request, SamplingParams
from engines.mpi.scheduler.policies.base import SchedulingPolicy
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
