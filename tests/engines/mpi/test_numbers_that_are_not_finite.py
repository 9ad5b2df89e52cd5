"""A prompt that makes the real model compute NaN: only its request fails, and no NaN in the cache affects others."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.core import AbortReason, EngineInfo
from engines.health import StatusBoard
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.leader import Leader
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.loading import load_model
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.trace import StepTrace
from engines.parallel import Communicator
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from engines.wire import Abort, Submit, ToEngine
from tests.engines.conftest import Answer
from tests.engines.mpi.fakes import CLIENT, ScriptedFront, make_request
from tests.support.engine_process import VOCAB_SIZE, make_config

_INFO = EngineInfo("m", "MPI", 1, "cpu", "fp32", 256, 256, 4, 4, 64, True)
Turn = list[tuple[bytes, ToEngine]]


@pytest.fixture(scope="module")
def poisoned_model(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory, answers: list[Answer]
) -> tuple[Path, int]:
    """The tiny model with NaN as the embedding of a token that occurs in no answer, and that token."""
    used = {token for answer in answers for token in (*answer.prompt, *answer.tokens)}
    poison = next(token for token in range(VOCAB_SIZE) if token not in used)
    folder = tmp_path_factory.mktemp("poisoned_model") / "model"
    shutil.copytree(tiny_llama, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][poison] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, poison


def _serve(model: Path, board: Path, paged: bool, *script: Turn) -> ScriptedFront:
    """Run all of rank 0 except the socket, with 40 blocks of 8 tokens and 16 prompt tokens per step."""
    config = make_config(model, paged=paged)
    stopwatch = Stopwatch(time.perf_counter)
    runner = load_model(config, Communicator(), torch.device("cpu"), stopwatch)
    blocks = make_block_manager(runner.cache.num_blocks, runner.cache.block_size, paged)
    scheduler = Scheduler(config.scheduler, blocks, config.model.max_model_len, runner.config.vocab_size)
    status = StatusBoard.create(board, 1)
    executor = StepExecutor(runner.steps, Communicator(), status, stopwatch)
    sampler = Sampler(runner.config.vocab_size, torch.device("cpu"))
    front = ScriptedFront(list(script))
    core = EngineCore(scheduler, blocks, executor, sampler, stopwatch, StepTrace(""))
    Leader(core, status, stopwatch).serve(front, _INFO)  # type: ignore[arg-type]
    assert blocks.num_free == blocks.num_blocks
    return front


def _submit(name: str, prompt: tuple[int, ...], max_new_tokens: int) -> tuple[bytes, ToEngine]:
    return CLIENT, Submit(make_request(name, prompt, max_new_tokens))


def _good(answers: list[Answer]) -> Turn:
    return [_submit(f"good {i}", answer.prompt, len(answer.tokens)) for i, answer in enumerate(answers)]


def _check(front: ScriptedFront, answers: list[Answer]) -> None:
    for i, answer in enumerate(answers):
        end = front.outputs[f"good {i}"][-1]
        assert tuple(front.tokens(f"good {i}")) == answer.tokens, end.error_message


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("length", [1, 8, 30, 60])
def test_a_prompt_with_nan_fails_alone_among_running_requests(
    poisoned_model: tuple[Path, int], answers: list[Answer], tmp_path: Path, paged: bool, length: int
) -> None:
    """The other requests share its steps, and their masked slots may contain the NaN that it has written."""
    model, poison = poisoned_model
    running = answers[:6]
    good = _good(running)
    bad = _submit("bad", (poison,) * length, 8)
    again = _submit("bad again", (1, 2, 3, poison), 8)
    script: list[Turn] = [good[:3], [], [bad], good[3:], [], [again]]
    front = _serve(model, tmp_path / "status", paged, *script)
    for name in ("bad", "bad again"):
        assert [output.error_kind for output in front.outputs[name]] == ["request_failed"]
    _check(front, running)


@pytest.mark.parametrize("paged", [True, False], ids=["paged", "contiguous"])
@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "failed"])
def test_blocks_that_contained_nan_can_be_reused(
    poisoned_model: tuple[Path, int], answers: list[Answer], tmp_path: Path, paged: bool, aborted: bool
) -> None:
    """The request has filled blocks with NaN, and was then aborted by its client or has failed."""
    model, poison = poisoned_model
    later = answers[:8]
    bad = _submit("bad", (poison,) * 100, 20)
    leave: Turn = [(CLIENT, Abort("bad", AbortReason.CLIENT_LEFT))] if aborted else []
    turns: list[Turn] = [[bad], [], [], leave, [], [], [], []]
    front = _serve(model, tmp_path / "status", paged, *turns, _good(later))
    assert [o.error_kind for o in front.outputs.get("bad", [])] == ([] if aborted else ["request_failed"])
    _check(front, later)
