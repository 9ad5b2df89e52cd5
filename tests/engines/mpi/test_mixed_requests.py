"""Requests of all kinds in one engine, whose steps are preempted and fail: each gets exactly the answer that it gets
alone, though greedy rows skip the computation of all logits and others do not."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.config import SchedulerConfig
from engines.core import Request, RequestOutput, SamplingParams, SchedulerSettings
from engines.health import StatusBoard
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.runner import native_steps
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.step_runner import StepRunner
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step_plan import StepPlan
from engines.mpi.trace import StepTrace
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import LogitBounds, shared_team
from tests.support.plans import BLOCK_SIZE
from tests.support.randomness import random_seed
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import make_runner, save_llama

_VOCAB_SIZE, _MAX_MODEL_LEN, _NUM_BLOCKS = 700, 64, 32
_NUM_REQUESTS = 26
_STOP = tuple(range(0, _VOCAB_SIZE, 20))
_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"stop_token_ids": _STOP},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "stop_token_ids": _STOP},
    {"repetition_penalty": 1.5},
    {"frequency_penalty": 1.0, "temperature": 0.7},
    {"logit_bias": ((7, 3.0), (500, -2.0))},
    {"logprobs": True, "top_logprobs": 3},
    {"prompt_logprobs": 2},
    {"min_new_tokens": 6, "stop_token_ids": _STOP},
    {"bad_words": ((9,), (4, 5))},
    {"num_beams": 2, "stop_token_ids": _STOP},
)


class _FailingSteps:
    """Steps that sometimes cannot be prepared, unless they have one sequence only."""

    def __init__(self, steps: StepRunner, rng: random.Random) -> None:
        self._steps, self._rng = steps, rng
        self.update, self.compute = steps.update, steps.compute
        self.num_failures = 0

    def prepare(self, plan: StepPlan) -> Any:
        if len(plan.rows) > 1 and self._rng.random() < 0.1:
            self.num_failures += 1
            raise RuntimeError("a step that fails on purpose")
        return self._steps.prepare(plan)


class _Engine:
    """Rank 0's engine."""

    def __init__(
        self, steps: StepRunner, comm: ThreadCommunicator, board: StatusBoard, num_blocks: int
    ) -> None:
        stopwatch = Stopwatch(lambda: 0.0)
        blocks = make_block_manager(num_blocks, BLOCK_SIZE, True, True, None)
        settings = SchedulerSettings(8, 16, 24, max_waiting=1000)
        self.scheduler = Scheduler(
            SchedulerConfig(settings, "max_utilization"), blocks, _MAX_MODEL_LEN, _VOCAB_SIZE
        )
        executor = StepExecutor(steps, comm, board, stopwatch)
        sampler = Sampler(_VOCAB_SIZE, torch.device("cpu"))
        largest = LargestStep.of(settings, _MAX_MODEL_LEN)
        self.core = EngineCore(self.scheduler, blocks, executor, sampler, stopwatch, StepTrace(""), largest)

    def answer(self, requests: Sequence[Request], rng: random.Random) -> dict[str, list[Any]]:
        """Serve requests that arrive at random steps. Return each one's tokens, log-probabilities, and end."""
        answers: dict[str, list[Any]] = {request.id: [[], [], [], [], None] for request in requests}
        waiting = list(requests)
        while waiting or self.core.has_work:
            while waiting and rng.random() < 0.7:
                self.core.add(waiting.pop(0))
            for output in self.core.step():
                _add(answers[output.id], output)
        return answers


def _add(answer: list[Any], output: RequestOutput) -> None:
    assert not output.error_kind, output.error_message
    parts = output.token_ids, output.logprobs, output.top_logprobs, output.prompt_logprobs
    for known, new in zip(answer, parts, strict=False):
        known.extend(new)
    answer[-1] = output.finish_reason


def _requests(rng: random.Random) -> list[Request]:
    shared = [rng.randrange(_VOCAB_SIZE) for _ in range(20)]
    requests = []
    for number in range(_NUM_REQUESTS):
        fields = _KINDS[number % len(_KINDS)]
        prompt = shared[: rng.randrange(20)] + [rng.randrange(_VOCAB_SIZE) for _ in range(rng.randint(1, 12))]
        sampling = SamplingParams(rng.randint(1, 28), seed=rng.randrange(2**63), **fields)
        requests.append(Request(f"request {number} {fields}", tuple(prompt), sampling, 0.0))
    rng.shuffle(requests)
    return requests


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, vocab_size=_VOCAB_SIZE)
    return folder


@pytest.mark.parametrize("always", [True, False], ids=["always", "where-it-helps"])
@pytest.mark.parametrize("degree", [1, 2])
def test_each_request_gets_the_answer_that_it_gets_alone(
    model: Path, tmp_path: Path, degree: int, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """always: greedy rows use bounds of logits, even where that takes longer."""
    if always:
        monkeypatch.setattr(LogitBounds, "max_exact_share", math.inf)
        monkeypatch.setattr(native_steps, "FEW_ROWS", 0)
    board = StatusBoard.create(tmp_path / "status", degree)
    seed = random_seed()
    print(f"seed {seed}; to repeat: LMI_TEST_SEED={seed}")
    requests = _requests(random.Random(seed))

    def rank(comm: ThreadCommunicator) -> None:
        runner = make_runner(model, comm, num_blocks=2 * _NUM_BLOCKS)
        if comm.rank > 0:
            executor = StepExecutor(runner.steps, comm, board, Stopwatch(lambda: 0.0))
            while executor.run_next_plan():
                pass
            return
        # Engines on one model run one after the other.
        rng, alone = random.Random(seed), dict[str, list[Any]]()
        for request in requests:
            alone |= _Engine(runner.steps, comm, board, 2 * _NUM_BLOCKS).answer([request], rng)
        steps = _FailingSteps(runner.steps, rng)
        engine = _Engine(steps, comm, board, _NUM_BLOCKS)
        together = engine.answer(requests, rng)
        engine.core.stop()
        assert engine.scheduler.num_preemptions
        assert steps.num_failures
        for name, answer in alone.items():
            if shared_team() is None:  # torch's log-probabilities depend on the batch in the last bits
                answer, together[name] = ([each[0], each[-1]] for each in (answer, together[name]))
            assert together[name] == answer, name

    run_ranks(degree, rank)
