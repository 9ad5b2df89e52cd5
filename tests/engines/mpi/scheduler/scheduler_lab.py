"""A scheduler with its block manager and a fake model, for tests."""

from __future__ import annotations

from typing import Any

from engines.config import SchedulerConfig
from engines.core import RequestOutput, SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step import Step
from tests.engines.mpi.fakes import NUM_IDS, FakeModel

BLOCK_SIZE = 4


class Lab:
    def __init__(
        self,
        paged: bool = True,
        num_blocks: int = 64,
        max_num_seqs: int = 4,
        max_prefill_tokens: int = 16,
        max_waiting: int = 100,
        max_model_len: int = 64,
        policy: str = "guaranteed_no_evict",
        max_num_batched_tokens: int = 1000,
        prefix_caching: bool = False,
        **settings: Any,
    ) -> None:
        self.blocks: BlockManager = make_block_manager(num_blocks, BLOCK_SIZE, paged, prefix_caching)
        limits = SchedulerSettings(
            max_num_seqs, max_prefill_tokens, max_num_batched_tokens, max_waiting, **settings
        )
        config = SchedulerConfig(limits, policy)
        self.scheduler = Scheduler(config, self.blocks, max_model_len, NUM_IDS)
        self.model = FakeModel(BLOCK_SIZE)
        self.num_computed = 0
        """Tokens of all steps so far."""

    def step(self, now: float = 0.0) -> tuple[Step, list[RequestOutput]]:
        step = self.scheduler.schedule()
        assert step is not None
        self.num_computed += step.plan.num_tokens
        outputs = self.scheduler.update(step, self.model.sample(step), now)
        self.scheduler.check()
        return step, outputs

    def run(self) -> dict[str, list[RequestOutput]]:
        """Run steps until all requests have ended."""
        outputs: dict[str, list[RequestOutput]] = {}
        while self.scheduler.has_work:
            for output in self.step()[1]:
                outputs.setdefault(output.id, []).append(output)
        return outputs


def ids(step: Step) -> list[str]:
    return [sequence.id for sequence in step.sequences]


def counts(step: Step) -> list[int]:
    return list(step.plan.query_lens)
