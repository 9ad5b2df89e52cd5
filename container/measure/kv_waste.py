"""How well ways of allocating fill the KV cache: the real scheduler and allocators, tokens invented, no model.

Everything waits from the beginning. A step computes one token for each running sequence, and parts of prompts beside.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.config import SchedulerConfig
from engines.core import Request, SampledToken, SamplingParams, SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.scheduler import sequence as sequences
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step import Step

_GO_ON = SampledToken(1)
_END = SampledToken(0)


@dataclass(frozen=True, slots=True)
class WasteLoad:
    """What is asked of each way of allocating."""

    num_requests: int
    prompt_tokens: int
    mean_output_tokens: float
    """Of an exponential distribution; drawn again where it is more than `max_new_tokens`."""
    max_new_tokens: int
    """What every request asks for: nobody knows before how long an answer will be."""
    pool_tokens: int
    block_size: int
    max_prefill_tokens: int
    seed: int

    def output_lengths(self) -> list[int]:
        numbers = random.Random(self.seed)
        lengths: list[int] = []
        while len(lengths) < self.num_requests:
            length = math.ceil(numbers.expovariate(1 / self.mean_output_tokens))
            if 1 <= length <= self.max_new_tokens:
                lengths.append(length)
        return lengths


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of allocating."""

    name: str
    admission: str
    paged: bool


ARMS = (
    Arm("contiguous, guaranteed_no_evict", "guaranteed_no_evict", paged=False),
    Arm("paged, guaranteed_no_evict", "guaranteed_no_evict", paged=True),
    Arm("paged, max_utilization", "max_utilization", paged=True),
)


@dataclass(frozen=True, slots=True)
class Waste:
    """Of one arm. Shares are means over steps."""

    arm: str
    waste: float
    """1 - tokens stored / slots allocated, over the steps in which any are."""
    allocated: float
    """Slots allocated, of the pool's."""
    promised: float
    """Slots of blocks that are promised to running sequences and not allocated, of the pool's."""
    mean_running: float
    mean_running_loaded: float
    """Over the steps in which others waited."""
    max_running: int
    preemptions: int
    recomputed_tokens: int
    steps: int


def run(arm: Arm, load: WasteLoad, progress: Callable[[int, int], None] = lambda done, total: None) -> Waste:
    """Raises ValueError: a request can never fit into the pool."""
    blocks = make_block_manager(load.pool_tokens // load.block_size, load.block_size, arm.paged)
    scheduler = _scheduler(arm, load, blocks)
    lengths = load.output_lengths()
    sampling = SamplingParams(load.max_new_tokens, stop_token_ids=(_END.token_id,))
    for number in range(load.num_requests):
        scheduler.add(Request(str(number), (number,) * load.prompt_tokens, sampling, 0.0))
    tally = _Tally(blocks)
    done = 0
    while (step := scheduler.schedule(float(tally.num_steps))) is not None:
        waiting = scheduler.num_waiting
        outputs = scheduler.update(step, _sample(step, lengths), float(tally.num_steps))
        done += sum(output.finished for output in outputs)
        tally.count(step.sequences, scheduler.num_running, waiting)
        progress(done, load.num_requests)
    return tally.result(arm, scheduler)


def _scheduler(arm: Arm, load: WasteLoad, blocks: BlockManager) -> Scheduler:
    longest = load.prompt_tokens + load.max_new_tokens
    if blocks.blocks_needed(longest) > blocks.num_blocks:
        raise ValueError(f"{longest} tokens of one request do not fit into {load.pool_tokens}")
    settings = SchedulerSettings(
        max_num_seqs=load.num_requests,
        max_prefill_tokens=load.max_prefill_tokens,
        max_num_batched_tokens=load.max_prefill_tokens + load.num_requests,
        max_waiting=load.num_requests,
    )
    return Scheduler(SchedulerConfig(settings, arm.admission), blocks, longest, load.num_requests)


def _sample(step: Step, lengths: list[int]) -> list[SampledToken]:
    return [
        _END if sequence.num_output_tokens + 1 == lengths[sequence.number] else _GO_ON
        for sequence in step.sampled
    ]


class _Tally:
    """Sums over steps; taken after each, when those that ended in it have left."""

    def __init__(self, blocks: BlockManager) -> None:
        self.num_steps = 0
        self._blocks = blocks
        self._waste = 0.0
        self._num_allocated_steps = 0
        self._allocated = 0
        self._promised = 0
        self._running = 0
        self._running_loaded = 0
        self._num_loaded = 0
        self._max_running = 0

    def count(self, planned: Sequence[sequences.Sequence], num_running: int, num_waiting: int) -> None:
        blocks = self._blocks
        self.num_steps += 1
        if blocks.num_used:
            self._waste += blocks.num_unfilled_slots / (blocks.num_used * blocks.block_size)
            self._num_allocated_steps += 1
        self._allocated += blocks.num_used
        # All that run are planned, as the limits do not bind; who has ended is promised nothing.
        self._promised += sum(sequence.num_promised_blocks for sequence in planned)
        self._running += num_running
        self._max_running = max(self._max_running, num_running)
        if num_waiting:
            self._running_loaded += num_running
            self._num_loaded += 1

    def result(self, arm: Arm, scheduler: Scheduler) -> Waste:
        steps, pool = max(1, self.num_steps), self._blocks.num_blocks
        return Waste(
            arm.name,
            self._waste / max(1, self._num_allocated_steps),
            self._allocated / pool / steps,
            self._promised / pool / steps,
            self._running / steps,
            self._running_loaded / self._num_loaded if self._num_loaded else self._running / steps,
            self._max_running,
            scheduler.num_preemptions,
            scheduler.num_recomputed_tokens,
            self.num_steps,
        )
