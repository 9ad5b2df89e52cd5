"""The last layer computes only the rows whose hidden states are wanted, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engines.layers.mlp import GatedMlp, Mlp, MoeMlp
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_NOTHING, WANT_PROMPT_LOGPROBS
from lmi_kernels.cpu import Rows, shared_team
from tests.support.plans import PlanMaker, run_plan
from tests.support.seeds import fresh_generator, integers
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import VOCAB_SIZE, make_runner, save_model

_FAMILIES = ("llama", "mixtral", "falcon-40b", "gemma2", "gpt2")


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("family", _FAMILIES)
def test_results_do_not_depend_on_which_rows_are_wanted(tmp_path: Path, family: str, degree: int) -> None:
    """Row 0 has a chunk without results, row 1 ends its prompt, row 2 is scored."""
    save_model(tmp_path, family)
    generator = fresh_generator()
    prompts = {row: integers(generator, 2, VOCAB_SIZE - 1, 5 + row) for row in range(3)}

    def rank(comm: ThreadCommunicator) -> list[StepResult]:
        runner = make_runner(tmp_path, comm, num_blocks=16)
        found = []
        for wants in (
            {0: WANT_NOTHING, 1: WANT_LOGITS, 2: WANT_PROMPT_LOGPROBS | WANT_LOGITS},
            dict.fromkeys(prompts, WANT_PROMPT_LOGPROBS | WANT_LOGITS),
            dict.fromkeys(prompts, WANT_NOTHING),
        ):
            maker = PlanMaker()
            for row in prompts:
                maker.begin(row, range(4 * row, 4 * row + 4))
            scored = [prompts[row] for row, want in wants.items() if want & WANT_PROMPT_LOGPROBS]
            targets = [PromptTargets(tuple(prompt[1:]), 0) for prompt in scored] if comm.rank == 0 else []
            found.append(run_plan(runner, maker.plan(prompts, wants), targets))
            following = maker.plan({row: [9] for row in prompts})
            found.append(run_plan(runner, following))
        return found

    (some, next_of_some, everything, next_of_all, nothing, next_of_none), *_ = run_ranks(degree, rank)
    assert some.logits is not None
    assert everything.logits is not None
    _assert_same(some.logits, everything.logits[1:])
    expected = [each.logprob for each in everything.prompt_logprobs[2]]
    assert [each.logprob for each in some.prompt_logprobs[0]] == pytest.approx(expected, abs=1e-5)
    assert nothing.logits is None
    assert next_of_all.logits is not None
    for following in (next_of_some, next_of_none):
        assert following.logits is not None
        _assert_same(following.logits, next_of_all.logits)


def _assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    if shared_team() is None:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("family", _FAMILIES)
def test_only_the_last_mlp_gets_selected_rows(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, family)
    selected: list[bool] = []
    for kind in (GatedMlp, Mlp, MoeMlp):
        original = kind.__call__

        def watched(self: Any, x: Rows, slots: Any, original: Any = original) -> torch.Tensor:
            selected.append(x.at_places)
            result: torch.Tensor = original(self, x, slots)
            return result

        monkeypatch.setattr(kind, "__call__", watched)
    make_runner(tmp_path)
    assert selected
    assert selected == [False, True] * (len(selected) // 2)
