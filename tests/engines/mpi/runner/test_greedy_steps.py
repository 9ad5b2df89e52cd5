"""Greedy sequences on ranks whose logits cannot all be bounded, and vocabularies that ranks share unevenly: the token
stays the one with the largest of all logits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.mpi.runner import native_steps
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import WANT_LARGEST_ONLY, WANT_LOGITS
from lmi_kernels.cpu import shared_team
from tests.support.plans import PlanMaker, run_plan
from tests.support.seeds import fresh_generator, integers
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import make_runner, save_llama

_ROWS = 8


@pytest.fixture(autouse=True)
def _needs_native_kernels() -> None:
    if shared_team() is None:
        pytest.skip("the host chooses all tokens without native kernels")


def _both_ways(model: Path, degree: int, vocab_size: int) -> tuple[StepResult, StepResult]:
    """Return rank 0's results of the same step with all logits and with only the largest ones of most rows."""
    generator = fresh_generator()
    prompts = {row: integers(generator, 0, vocab_size - 1, 7) for row in range(_ROWS)}
    greedy = dict.fromkeys(range(_ROWS - 1), WANT_LOGITS | WANT_LARGEST_ONLY)

    def rank(comm: ThreadCommunicator) -> list[StepResult]:
        runner = make_runner(model, comm, num_blocks=2 * _ROWS)
        found = []
        for wants in ({}, greedy):
            maker = PlanMaker()
            for row in prompts:
                maker.begin(row, [2 * row + 1, 2 * row])
            found.append(run_plan(runner, maker.plan(prompts, wants)))
        return found

    (full, bounded), *_ = run_ranks(degree, rank)
    return full, bounded


def _check(full: StepResult, bounded: StepResult) -> None:
    assert full.logits is not None
    expected = full.logits.argmax(dim=1).tolist()
    assert {row: found.token_id for row, found in bounded.greedy_tokens.items()} == dict(
        enumerate(expected[:-1])
    )
    assert bounded.logits is not None
    assert torch.equal(bounded.logits, full.logits[-1:])


@pytest.mark.parametrize("vocab_size", [97, 130, 4])
def test_ranks_with_uneven_shares_of_the_vocabulary(
    tmp_path: Path, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_steps, "FEW_ROWS", 0)
    save_llama(tmp_path, vocab_size=vocab_size)
    _check(*_both_ways(tmp_path, 3, vocab_size))


@pytest.mark.parametrize("few", [_ROWS - 1, _ROWS])
def test_few_greedy_rows_share_the_head_with_rows_that_need_all_logits(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_steps, "FEW_ROWS", few)
    save_llama(tmp_path)
    full, found = _both_ways(tmp_path, 1, 97)
    assert len(found.greedy_tokens) == (0 if few == _ROWS else _ROWS - 1)
    assert full.logits is not None
    assert found.logits is not None
    assert torch.equal(found.logits, full.logits[-len(found.logits) :])


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_ranks_agree_on_the_head_if_logits_of_one_cannot_be_bounded(
    tmp_path: Path, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rank's share has a weight that is too large for bounds."""
    monkeypatch.setattr(native_steps, "FEW_ROWS", 0)
    save_llama(tmp_path / "sound")
    shutil.copytree(tmp_path / "sound", tmp_path / "model")
    tensors = load_file(tmp_path / "model/model.safetensors")
    tensors["model.embed_tokens.weight"][-1, 5] = 1e20
    save_file(tensors, tmp_path / "model/model.safetensors", metadata={"format": "pt"})
    full, found = _both_ways(tmp_path / "model", degree, 97)
    assert full.logits is not None
    assert found.logits is not None
    assert not found.greedy_tokens
    assert torch.equal(found.logits, full.logits)
