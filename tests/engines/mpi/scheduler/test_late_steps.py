"""Steps planned before the tokens of the step before are known: every request gets what it gets alone."""

from __future__ import annotations

import random

import pytest

from engines.config import SchedulerConfig
from engines.core import FinishReason, SchedulerSettings
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.scheduler.scheduler import Scheduler
from tests.engines.mpi.fakes import NUM_IDS, continue_alone, make_request
from tests.engines.mpi.scheduler.late_steps import MODES, LateEngine, Mode, run_episodes
from tests.support.randomness import random_seed


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tokens_are_those_of_a_lone_request(mode: Mode) -> None:
    seed = random_seed()
    print(f"seed {seed}")
    outcome = run_episodes(mode, 12, random.Random(seed))
    assert outcome.num_wrong == 0
    if mode[0] == "max_utilization" and not mode[4]:
        assert outcome.num_preemptions, "nobody was ever preempted: the pools are too large for this test"


def test_a_stop_token_is_seen_one_step_late() -> None:
    """The step that ran meanwhile is wasted, and no client hears of it."""
    blocks = make_block_manager(16, 4, paged=True)
    settings = SchedulerSettings(2, 16, 16, max_waiting=4)
    engine = LateEngine(Scheduler(SchedulerConfig(settings), blocks, 40, NUM_IDS), blocks)
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
