"""Steps planned before the tokens of the previous step are known: outputs equal those of a lone request."""

from __future__ import annotations

import random

import pytest

from engines.config import SchedulerConfig
from engines.core import FinishReason, SchedulerSettings
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.scheduler import Scheduler
from tests.engines.mpi.fakes import NUM_IDS, expected_output, make_request
from tests.engines.mpi.scheduler.beams_lab import beam_request, expected_beam_result
from tests.engines.mpi.scheduler.late_steps import MODES, Mode, PipelinedEngine, run_episodes
from tests.support.randomness import random_seed


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tokens_equal_those_of_a_lone_request(mode: Mode) -> None:
    seed = random_seed()
    print(f"seed {seed}")
    outcome = run_episodes(mode, 4, random.Random(seed))
    assert outcome.num_wrong == 0
    if mode[0] == "max_utilization" and not mode[4]:
        assert outcome.num_preemptions, "no preemption: the pools are too large for this test"


def test_a_stop_token_is_seen_one_step_late() -> None:
    """The step in flight meanwhile is wasted, and its output is dropped."""
    blocks = make_block_manager(16, 4, paged=True)
    settings = SchedulerSettings(2, 16, 16, max_waiting=4)
    engine = PipelinedEngine(Scheduler(SchedulerConfig(settings), blocks, 40, NUM_IDS), blocks)
    tokens, _ = expected_output(make_request("a", [1, 2], max_new_tokens=9))
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


@pytest.mark.parametrize("windowed", [False, True])
def test_the_prompt_of_a_beam_search_is_computed_once(windowed: bool) -> None:
    """The prompt runs in chunks beside a decode, so its steps stay in flight."""
    window = Window(8, max_chunk=10) if windowed else None
    blocks = make_block_manager(64, 4, paged=True, window=window)
    settings = SchedulerSettings(4, 10, 10, max_waiting=4)
    scheduler = Scheduler(SchedulerConfig(settings), blocks, 60, NUM_IDS)
    engine = PipelinedEngine(scheduler, blocks, window and window.num_tokens)
    scheduler.add(make_request("decodes", [1, 2], max_new_tokens=30))
    engine.turn(0.0)
    request = beam_request("beams", [*range(40)], 2, 4)
    scheduler.add(request)
    while engine.busy:
        engine.turn(1.0)
    chunks = [(start, count) for name, start, count in engine.computed if name == "beams"]
    assert len(chunks) > 3
    assert [start for start, _ in chunks[1:]] == [start + count for start, count in chunks[:-1]]
    (output,) = engine.got["beams"]
    assert output.token_ids == expected_beam_result(request, engine.window).token_ids
