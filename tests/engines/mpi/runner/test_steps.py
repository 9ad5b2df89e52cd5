"""Steps of a rank, from plans built by hand. Logits and prompt log-probabilities equal those of transformers for any
chunks, any other sequences in the step, and any earlier owners of the rows and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.core import SampledToken
from engines.mpi.runner import native_steps
from engines.mpi.runner.largest_step import SCORED_TOKENS
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import (
    WANT_LARGEST_ONLY,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_PROMPT_LOGPROBS,
    StepPlan,
)
from lmi_kernels.cpu import shared_team
from tests.support.plans import PlanMaker, run_plan
from tests.support.seeds import fresh_generator, integers
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import (
    BLOCK_SIZE,
    VOCAB_SIZE,
    load_oracle,
    make_runner,
    oracle_logits,
    save_llama,
)

Step = tuple[StepPlan, Sequence[PromptTargets]]
_DEGREES = pytest.mark.parametrize("degree", [1, 2])
_CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-4}
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder)
    return folder


@pytest.fixture(scope="module")
def oracle(model: Path) -> Any:
    return load_oracle(model, "fp32")


def _run(model: Path, degree: int, steps: Sequence[Step]) -> list[StepResult]:
    """Return the results of rank 0. The other ranks return empty results."""

    def rank(comm: ThreadCommunicator) -> list[StepResult]:
        runner = make_runner(model, comm, num_blocks=NUM_BLOCKS)
        return [run_plan(runner, plan, targets if comm.rank == 0 else ()) for plan, targets in steps]

    found, *others = run_ranks(degree, rank)
    assert all(result == StepResult() for results in others for result in results)
    return found


def _last_logits(oracle: Any, tokens: Sequence[int]) -> torch.Tensor:
    return oracle_logits(oracle, tokens)[-1]


@_DEGREES
def test_sequences_in_any_chunks_on_reused_rows_and_blocks(model: Path, oracle: Any, degree: int) -> None:
    """12 sequences use 4 rows in turn, with blocks that other sequences have freed."""
    generator = fresh_generator()
    maker, free = PlanMaker(), list(range(NUM_BLOCKS))
    waiting = [integers(generator, 0, VOCAB_SIZE, length) for length in integers(generator, 1, 60, 12)]
    running: dict[int, tuple[list[int], list[int]]] = {}
    steps: list[Step] = []
    expected: list[list[list[int]]] = []
    while waiting or running:
        for row in range(4):
            if waiting and row not in running and integers(generator, 0, 2, 1)[0]:
                tokens = waiting.pop()
                count = -(-len(tokens) // BLOCK_SIZE)
                table = [free.pop(integers(generator, 0, len(free), 1)[0]) for _ in range(count)]
                maker.begin(row, table)
                running[row] = (tokens, table)
        chunks, wants, ends = {}, {}, []
        for row, (tokens, table) in list(running.items()):
            if integers(generator, 0, 4, 1) == [0]:
                continue
            start = maker.computed[row]
            stop = min(len(tokens), start + integers(generator, 1, 9, 1)[0])
            chunks[row] = tokens[start:stop]
            wants[row] = integers(generator, 0, 2, 1)[0] * WANT_LOGITS
            if wants[row]:
                ends.append(tokens[:stop])
            if stop == len(tokens):
                free += table
                del running[row]
        if chunks:
            steps.append((maker.plan(chunks, wants), ()))
            expected.append(ends)
    for result, ends in zip(_run(model, degree, steps), expected, strict=True):
        assert (result.logits is None) == (not ends)
        if result.logits is not None:
            wanted = torch.stack([_last_logits(oracle, tokens) for tokens in ends])
            torch.testing.assert_close(result.logits, wanted, **_CLOSE)


@_DEGREES
def test_greedy_sequences_get_the_token_with_the_largest_logit(
    model: Path, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shared_team() is None:
        pytest.skip("the host chooses all tokens without native kernels")
    monkeypatch.setattr(native_steps, "FEW_ROWS", 0)
    generator = fresh_generator()
    prompts = {row: integers(generator, 0, VOCAB_SIZE, 9) for row in range(8)}
    flags = [dict.fromkeys(prompts, WANT_LOGITS)]
    for greedy in ([0, 3, 4, 7], [*prompts], [5]):
        flags.append(flags[0] | dict.fromkeys(greedy, WANT_LOGITS | WANT_LARGEST_ONLY))
    steps: list[Step] = []
    for wants in flags:
        maker = PlanMaker()
        for row in prompts:
            maker.begin(row, [3 * row + 1, 3 * row, 3 * row + 2])
        steps.append((maker.plan(prompts, wants), ()))
    full, *results = _run(model, degree, steps)
    assert full.logits is not None
    assert not full.greedy_tokens
    expected = full.logits.argmax(dim=1).tolist()
    for wants, result in zip(flags[1:], results, strict=True):
        greedy = [row for row, want in wants.items() if want & WANT_LARGEST_ONLY]
        assert [*result.greedy_tokens] == greedy
        for row in greedy:
            assert result.greedy_tokens[row] == SampledToken(expected[row], None)
        left = [row for row in prompts if row not in greedy]
        assert (result.logits is None) == (not left)
        if result.logits is not None:
            assert torch.equal(result.logits, full.logits[left])


@_DEGREES
@pytest.mark.parametrize("sizes", [[40], [7, 1, 20, 12], [1] * 40, [39, 1]])
def test_prompt_logprobs_are_the_log_softmax(model: Path, oracle: Any, degree: int, sizes: list[int]) -> None:
    generator = fresh_generator()
    prompt, other = (integers(generator, 0, VOCAB_SIZE, count) for count in (40, 50))
    maker = PlanMaker()
    maker.begin(2, [9, 2, 31, 4, 17, 0, 22, 30, 5, 40])
    maker.begin(6, [63, 7, 50, 8, 33, 1, 44, 20, 6, 3, 11, 13, 14])
    steps: list[Step] = []
    for step, size in enumerate(sizes):
        start = maker.computed[2]
        want = WANT_PROMPT_LOGPROBS + (WANT_LOGITS if start + size == 40 else WANT_NOTHING)
        chunks = {6: other[step : step + 1], 2: prompt[start : start + size]}
        targets = [PromptTargets(tuple(prompt[start + 1 : start + size + 1]), 3)]
        steps.append((maker.plan(chunks, {2: want}), targets))
    results = _run(model, degree, steps)
    scores = [score for result in results for score in result.prompt_logprobs[0]]
    logprobs = oracle_logits(oracle, prompt).log_softmax(dim=-1)
    assert len(scores) == 39
    for position, score in enumerate(scores):
        own = float(logprobs[position, prompt[position + 1]])
        assert score.logprob == pytest.approx(own, abs=2e-4)
        values, ids = logprobs[position].topk(3)
        assert [token for token, _ in score.top] == ids.tolist()
        assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=2e-4)
    last = results[-1].logits
    assert last is not None
    torch.testing.assert_close(last[1], _last_logits(oracle, prompt), **_CLOSE)


@_DEGREES
def test_each_sequence_gets_its_requested_number_of_top_tokens(model: Path, oracle: Any, degree: int) -> None:
    """More rows than are scored at once. One sequence requests no top tokens, one no log-probabilities at all."""
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, 60) for _ in range(4)]
    maker = PlanMaker()
    for row in range(4):
        maker.begin(row, range(15 * row, 15 * row + 15))
    tops = {0: 0, 1: 5, 3: 200}
    wants = dict.fromkeys(tops, WANT_PROMPT_LOGPROBS) | {2: WANT_NOTHING}
    plan = maker.plan(dict(enumerate(prompts)), wants)
    targets = [PromptTargets(tuple(prompts[row][1:]), top) for row, top in tops.items()]
    (result,) = _run(model, degree, [(plan, targets)])
    assert result.logits is None
    assert len(result.prompt_logprobs) == 3
    for (row, top), scores in zip(tops.items(), result.prompt_logprobs, strict=True):
        logprobs = oracle_logits(oracle, prompts[row]).log_softmax(dim=-1)
        own = [float(logprobs[i, token]) for i, token in enumerate(prompts[row][1:])]
        assert [score.logprob for score in scores] == pytest.approx(own, abs=2e-4)
        assert {len(score.top) for score in scores} == {min(top, VOCAB_SIZE)}


@_DEGREES
def test_every_rank_shows_that_it_is_alive_while_prompts_are_scored(model: Path, degree: int) -> None:
    """Once more for each slice of rows than in the same step without scores."""
    prompts = {row: [row] * 60 for row in range(4)}

    def rank(comm: ThreadCommunicator) -> list[int]:
        beats: list[None] = []
        runner = make_runner(model, comm, num_blocks=NUM_BLOCKS, show_alive=lambda: beats.append(None))
        counts = []
        for want in (WANT_NOTHING, WANT_PROMPT_LOGPROBS):
            maker = PlanMaker()
            for row in prompts:
                maker.begin(row, range(15 * row, 15 * row + 15))
            plan = maker.plan(prompts, dict.fromkeys(prompts, want))
            targets = [PromptTargets((row,) * 59, 0) for row in prompts] if want and comm.rank == 0 else []
            beats.clear()
            run_plan(runner, plan, targets)
            counts.append(len(beats))
        return counts

    for plain, scored in run_ranks(degree, rank):
        assert scored - plain == -(-240 // SCORED_TOKENS)


@_DEGREES
def test_sequences_continue_from_copied_blocks(model: Path, oracle: Any, degree: int) -> None:
    """Row 1 shares the full blocks of row 0 and has a copy of its last block. Row 2 has a copy of that copy."""
    generator = fresh_generator()
    prompt = integers(generator, 0, VOCAB_SIZE, 10)
    tails = [integers(generator, 0, VOCAB_SIZE, 5) for _ in range(3)]
    maker = PlanMaker()
    maker.begin(0, [5, 9, 20, 21])
    steps: list[Step] = [(maker.plan({0: prompt}), ())]
    maker.begin(1, [5, 9, 30, 31], computed=10)
    maker.begin(2, [5, 9, 40, 41], computed=10)
    steps.append((maker.plan(dict(enumerate(tails)), copies=[20, 30, 30, 40]), ()))
    logits = _run(model, degree, steps)[1].logits
    assert logits is not None
    expected = torch.stack([_last_logits(oracle, [*prompt, *tail]) for tail in tails])
    torch.testing.assert_close(logits, expected, **_CLOSE)


def test_the_parts_of_a_plan_give_the_same_logits_as_the_whole(model: Path) -> None:
    """Parts contain no updates. Those of the whole plan were applied once, even if its batch was not computed."""
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (9, 1, 14)]
    maker = PlanMaker()
    for row, table in enumerate(([3, 1, 2], [5], [20, 10, 30, 11])):
        maker.begin(row, table)
    plan = maker.plan(dict(enumerate(prompts)))
    whole = run_plan(make_runner(model), plan).logits
    runner = make_runner(model)
    runner.steps.update(plan)
    assert whole is not None
    for first, last in ((0, 1), (1, 3)):
        part = run_plan(runner, plan.part(first, last)).logits
        assert part is not None
        torch.testing.assert_close(part, whole[first:last], **_CLOSE)


def test_invalid_updates_raise(model: Path) -> None:
    runner = make_runner(model)
    plan = PlanMaker().plan({})
    with pytest.raises(ValueError, match="cannot be applied"):
        runner.steps.update(StepPlan(plan.kind, table_updates=[0, 0, 5, 1]))
    with pytest.raises(IndexError):
        runner.steps.update(StepPlan(plan.kind, copies=[0, NUM_BLOCKS]))
