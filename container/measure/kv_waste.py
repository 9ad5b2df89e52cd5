"""Measure the KV cache wasted by contiguous and paged allocation: real scheduler and allocators, no model.

All requests arrive at the start. A step computes one token of each running sequence, and chunks of prompts.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from container.measure.bench.lengths import bounded
from engines.config import SchedulerConfig
from engines.core import Request, SampledToken, SamplingParams, SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step import Step

_TOKEN = SampledToken(1)
_END = SampledToken(0)


@dataclass(frozen=True, slots=True)
class WasteLoad:
    """The load, which is the same for each kind of allocation."""

    num_requests: int
    prompt_tokens: int
    mean_output_tokens: float
    """Mean of an exponential distribution. Answers longer than `max_new_tokens` are redrawn."""
    max_new_tokens: int
    """Limit of every request; the scheduler does not know the actual length of an answer."""
    pool_tokens: int
    block_size: int
    max_prefill_tokens: int
    seed: int

    def output_lengths(self) -> list[int]:
        numbers = random.Random(self.seed)
        rate = 1 / self.mean_output_tokens
        return bounded(lambda: math.ceil(numbers.expovariate(rate)), self.max_new_tokens, self.num_requests)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A kind of allocation."""

    name: str
    admission: str
    paged: bool


ALLOCATIONS = (
    Allocation("contiguous, guaranteed_no_evict", "guaranteed_no_evict", paged=False),
    Allocation("paged, guaranteed_no_evict", "guaranteed_no_evict", paged=True),
    Allocation("paged, max_utilization", "max_utilization", paged=True),
)


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """Result of one kind of allocation. Shares are means over steps."""

    allocation: str
    waste: float
    """1 - stored tokens / allocated slots, over the steps with allocated slots."""
    allocated: float
    """Share of the pool that is allocated."""
    reserved: float
    """Share of the pool in blocks that are reserved for running sequences but not allocated yet."""
    mean_running: float
    mean_running_loaded: float
    """Mean running sequences over the steps in which requests waited."""
    max_running: int
    preemptions: int
    recomputed_tokens: int
    steps: int


def measure_waste(
    allocation: Allocation, load: WasteLoad, progress: Callable[[int, int], None] = lambda done, total: None
) -> AllocationResult:
    """Run all requests to completion. Raises ValueError if a request can never fit into the pool."""
    block_size = load.block_size
    blocks = make_block_manager(load.pool_tokens // block_size, block_size, allocation.paged)
    scheduler = _scheduler(allocation, load, blocks)
    lengths = load.output_lengths()
    sampling = SamplingParams(load.max_new_tokens, stop_token_ids=(_END.token_id,))
    for number in range(load.num_requests):
        scheduler.add(Request(str(number), (number,) * load.prompt_tokens, sampling, 0.0))
    uses: list[_StepUse] = []
    done = 0
    while (step := scheduler.schedule()) is not None:
        num_waiting = scheduler.num_waiting
        outputs = scheduler.update(step, _sample(step, lengths), float(len(uses)))
        done += sum(output.finished for output in outputs)
        unfilled = blocks.num_unfilled_slots / (blocks.num_used * block_size) if blocks.num_used else None
        uses.append(
            _StepUse(blocks.num_used, unfilled, blocks.num_reserved, scheduler.num_running, num_waiting)
        )
        progress(done, load.num_requests)
    loaded = [use.num_running for use in uses if use.num_waiting]
    return AllocationResult(
        allocation=allocation.name,
        waste=_mean(use.unfilled for use in uses if use.unfilled is not None),
        allocated=_mean(use.num_used for use in uses) / blocks.num_blocks,
        reserved=_mean(use.num_reserved for use in uses) / blocks.num_blocks,
        mean_running=_mean(use.num_running for use in uses),
        mean_running_loaded=_mean(loaded or [use.num_running for use in uses]),
        max_running=max((use.num_running for use in uses), default=0),
        preemptions=scheduler.num_preemptions,
        recomputed_tokens=scheduler.num_recomputed_tokens,
        steps=len(uses),
    )


@dataclass(frozen=True, slots=True)
class _StepUse:
    """Cache use after one step, without the sequences that finished in the step."""

    num_used: int
    unfilled: float | None
    """Share of the allocated slots without a token; None if no slots are allocated."""
    num_reserved: int
    num_running: int
    num_waiting: int


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(found) if (found := list(values)) else 0.0


def _scheduler(allocation: Allocation, load: WasteLoad, blocks: BlockManager) -> Scheduler:
    longest = load.prompt_tokens + load.max_new_tokens
    if blocks.blocks_needed(longest) > blocks.num_blocks:
        raise ValueError(
            f"--pool-tokens: too small for one request of {longest} tokens (got {load.pool_tokens})"
        )
    settings = SchedulerSettings(
        max_num_seqs=load.num_requests,
        max_prefill_tokens=load.max_prefill_tokens,
        max_num_batched_tokens=load.max_prefill_tokens + load.num_requests,
        max_waiting=load.num_requests,
    )
    return Scheduler(SchedulerConfig(settings, allocation.admission), blocks, longest, load.num_requests)


def _sample(step: Step, lengths: list[int]) -> list[SampledToken]:
    return [
        _END if sequence.num_output_tokens + 1 == lengths[sequence.number] else _TOKEN
        for sequence in step.sampled
    ]
