"""Steps planned before the tokens of the step before are known: every request gets what it gets alone."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from engines.config import SchedulerConfig
from engines.core import FinishReason, RequestOutput, SampledToken, SchedulerSettings
from engines.mpi.block_manager import BlockManager, make_block_manager
from engines.mpi.scheduler import Scheduler
from engines.mpi.step import Step
from engines.mpi.step_plan import UNKNOWN_TOKEN, WANT_LOGITS, StepPlan
from tests.engines.mpi.fakes import VOCAB, FakeModel, continue_alone, make_request

MODES = [
    (policy, paged, cached, chunked)
    for policy, paged, cached, chunked in product(
        ("max_utilization", "guaranteed_no_evict", "static_batch"),
        (True, False),
        (True, False),
        (True, False),
    )
    if paged or (policy != "max_utilization" and not cached)
]


class LateModel(FakeModel):
    """Remembers by row what it sampled last, and takes that for what the plan does not know."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._last: dict[int, int] = {}

    def compute(self, plan: StepPlan) -> list[int]:
        known, at = list(plan.token_ids), 0
        for row, count in zip(plan.rows, plan.query_lens, strict=True):
            if known[at] == UNKNOWN_TOKEN:
                assert count == 1
                known[at] = self._last[row]
            at += count
        tokens = super().compute(replace(plan, token_ids=known))
        sampled = [row for row, want in zip(plan.rows, plan.wants, strict=True) if want & WANT_LOGITS]
        self._last.update(zip(sampled, tokens, strict=True))
        return tokens


class LateEngine:
    """The step loop with one step in flight, with a model that computes at once and tells later."""

    def __init__(self, scheduler: Scheduler, blocks: BlockManager) -> None:
        self.scheduler = scheduler
        self.blocks = blocks
        self.got: dict[str, list[RequestOutput]] = {}
        self._model = LateModel(blocks.block_size)
        self._flying: tuple[Step, list[int]] | None = None

    @property
    def busy(self) -> bool:
        return self.scheduler.has_work or self._flying is not None

    def turn(self, now: float) -> None:
        step = self.scheduler.schedule(now)
        flying = None
        if step is not None:
            flying = (step, self._model.run(step.plan))
            self.scheduler.begin(step)
        before, self._flying = self._flying, flying
        if before is not None:
            tokens = [SampledToken(token) for token in before[1]]
            for output in self.scheduler.finish(before[0], tokens, now):
                self.got.setdefault(output.id, []).append(output)
        self.blocks.check()


def _engine(mode: tuple[str, bool, bool, bool], rng: random.Random) -> LateEngine:
    policy, paged, cached, chunked = mode
    settings = SchedulerSettings(
        max_num_seqs=rng.randint(1, 6),
        max_prefill_tokens=rng.randint(4, 30),
        max_num_batched_tokens=rng.randint(6, 40),
        max_waiting=1000,
        scheduling_policy=rng.choice(("fcfs", "priority", "fair")),
        chunked_prefill=chunked,
    )
    blocks = make_block_manager(rng.randint(16, 30), rng.randint(1, 4), paged, cached)
    return LateEngine(Scheduler(SchedulerConfig(settings, policy), blocks, 60), blocks)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tokens_are_those_of_a_lone_request(mode: tuple[str, bool, bool, bool]) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    preempted = 0
    for _ in range(12):
        engine = _engine(mode, rng)
        limit = min(60, engine.blocks.num_blocks * engine.blocks.block_size)
        requests = {}
        for number in range(25):
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, limit // 3))]
            sibling = rng.choice([None, *requests]) if requests else None
            request = make_request(
                f"r{number}",
                requests[sibling].prompt_token_ids if sibling else prompt,
                rng.randint(1, limit // 2),
                stop=rng.sample(range(VOCAB), rng.choice((0, 1, 4))),
            )
            requests[request.id] = replace(request, same_prompt_as=sibling or "")
        aborted = set()
        waiting = list(requests.values())
        now = 0.0
        while waiting or engine.busy:
            now += 1.0
            while waiting and rng.random() < 0.3:
                engine.scheduler.add(waiting.pop(0))
            if rng.random() < 0.03 and engine.scheduler.request_ids():
                aborted.add(name := rng.choice(engine.scheduler.request_ids()))
                engine.scheduler.abort(name)
            engine.turn(now)
            assert now < 5000, "it does not come to an end"
        for name, request in requests.items():
            outputs = engine.got.get(name, [])
            tokens, reason = continue_alone(request)
            if name in aborted:
                assert [token for output in outputs for token in output.token_ids] == tokens[: len(outputs)]
                continue
            assert [token for output in outputs for token in output.token_ids] == tokens
            assert [output.finish_reason for output in outputs] == [None] * (len(tokens) - 1) + [reason]
        assert engine.blocks.num_used == 0
        preempted += engine.scheduler.num_preemptions
    if mode[0] == "max_utilization":
        assert preempted, "nobody ever gave way: the pools are too large for this test"


def test_a_stop_token_is_seen_one_step_late() -> None:
    """The step that ran meanwhile is wasted, and no client hears of it."""
    blocks = make_block_manager(16, 4, paged=True)
    settings = SchedulerSettings(2, 16, 16, max_waiting=4)
    engine = LateEngine(Scheduler(SchedulerConfig(settings), blocks, 40), blocks)
    tokens, _ = continue_alone(make_request("a", [1, 2], max_new_tokens=9))
    stop = next(token for i, token in enumerate(tokens) if token not in tokens[:i] and i >= 2)
    count = tokens.index(stop) + 1
    engine.scheduler.add(make_request("a", [1, 2], max_new_tokens=30, stop=[stop]))
    turns = 0
    while engine.busy:
        engine.turn(float(turns))
        turns += 1
    assert engine.got["a"][-1].finish_reason is FinishReason.EOS_TOKEN
    assert len(engine.got["a"]) == count
    assert turns == count + 2
