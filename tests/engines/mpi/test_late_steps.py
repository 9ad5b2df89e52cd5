"""Steps planned before the tokens of the previous step are known. Random requests are in test_property_engine.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.config import SchedulerConfig
from engines.core import FinishReason, Request, RequestOutput, SamplingParams, SchedulerSettings
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.engine_core import EngineCore
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.trace import StepTrace
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from tests.engines.mpi.property_answers import expected_answer
from tests.engines.mpi.property_model import CPU, Executor, make_executor
from tests.engines.mpi.scheduler.property_requests import VOCAB


def _engine(settings: SchedulerSettings, window: Window | None = None) -> tuple[EngineCore, Executor]:
    blocks = make_block_manager(64, 4, paged=True, window=window)
    scheduler = Scheduler(SchedulerConfig(settings), blocks, 60, VOCAB)
    largest = LargestStep.of(settings, 60)
    executor = make_executor(64, 4, window and window.num_tokens, largest)
    parts = scheduler, blocks, executor, Sampler(VOCAB, CPU), Stopwatch(lambda: 0.0), StepTrace("")
    return EngineCore(*parts, largest), executor  # type: ignore[arg-type]


def test_a_stop_token_is_seen_one_step_late() -> None:
    """The step in flight meanwhile is wasted, and its output is dropped."""
    core, executor = _engine(SchedulerSettings(2, 16, 16, max_waiting=4))
    request = Request("a", (1, 2), SamplingParams(30), 0.0)
    tokens = [token.token_id for token in expected_answer(request, None).tokens]
    stop = next(token for i, token in enumerate(tokens) if token not in tokens[:i] and i >= 2)
    count = tokens.index(stop) + 1
    core.add(replace(request, sampling=SamplingParams(30, stop_token_ids=(stop,))))
    outputs: list[RequestOutput] = []
    while core.has_work:
        outputs += core.step()
    assert [output.token_ids for output in outputs] == [(token,) for token in tokens[:count]]
    assert outputs[-1].finish_reason is FinishReason.EOS_TOKEN
    assert len(executor.plans) == count + 1


@pytest.mark.parametrize("window", [None, Window(8, max_chunk=10)], ids=["full", "windowed"])
def test_the_prompt_of_a_beam_search_is_computed_once(window: Window | None) -> None:
    """The prompt runs in chunks beside a decode, so its steps stay in flight."""
    core, executor = _engine(SchedulerSettings(4, 10, 10, max_waiting=4), window)
    core.add(Request("decodes", (1, 2), SamplingParams(30), 0.0))
    core.step()
    request = Request("beams", tuple(range(31)), SamplingParams(4, num_beams=2), 0.0)
    core.add(request)
    outputs: list[RequestOutput] = []
    while core.has_work:
        outputs += core.step()
    chunks = [
        (start, count)
        for plan in executor.plans[1:]
        for start, count in zip(plan.starts, plan.query_lens, strict=True)
        if count > 1
    ]
    assert len(chunks) > 3
    assert [start for start, _ in chunks] == [0, *(start + count for start, count in chunks[:-1])]
    (tokens,) = [output.token_ids for output in outputs if output.id == "beams"]
    answer = expected_answer(request, window and window.num_tokens)
    assert tokens == tuple(token.token_id for token in answer.tokens)
