"""A request gets the same tokens in any batch: random arrivals in all modes against the request alone."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.arrival_schedules import Subject, Tally, draw_mode, run_schedule
from tests.support.core_lab import CoreLab, Mode, greedy, run_all
from tests.support.oracle import oracle
from tests.support.prompts import ALL
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 15
TITLE = "Greedy tokens do not depend on the batch, chunks, preemption, cached prefixes, paging or admission"

NUM_TINY, NUM_REAL = 1000, 50
_REAL_TOKENS = 24
_BLOCK_SIZE = 16


def verify(lab: Lab, report: Report) -> None:
    _check_tiny(report)
    _check_real(lab, report)


def _check_tiny(report: Report) -> None:
    from tests.support.engine_process import MAX_MODEL_LEN, VOCAB_SIZE, save_tiny_llama

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tiny_llama(folder)
        core = CoreLab(folder, folder, block_size=8, num_blocks=256, max_model_len=MAX_MODEL_LEN)
        rng = random.Random(3)
        prompts = [
            tuple(rng.randrange(VOCAB_SIZE) for _ in range(length))
            for length in (1, 2, 7, 8, 9, 16, 17, 31, 40, 64, 90)
        ]
        prompts += [(*prompts[-1][:33], *prompts[3]), (*prompts[-1][:64], 5, 6)]
        subjects = _alone(core, prompts, 24)
        tally = Tally()
        for seed in range(NUM_TINY):
            mode = draw_mode(random.Random(seed), 90 + 24, 8)
            run_schedule(core, subjects, mode, seed, tally)
    _report(report, "tiny model", tally, NUM_TINY)


def _check_real(lab: Lab, report: Report) -> None:
    answers = oracle(lab.model, ALL)
    subjects = [
        Subject(answer.prompt_ids, answer.token_ids_ignoring_eos[:_REAL_TOKENS])
        for answer in answers
        if len(answer.prompt_ids) <= 150
    ]
    core = CoreLab(lab.model, lab.folder, block_size=_BLOCK_SIZE, num_blocks=400, max_step_tokens=64)
    tally = Tally()
    longest = max(len(subject.prompt) for subject in subjects) + _REAL_TOKENS
    for seed in range(NUM_REAL):
        rng = random.Random(10_000 + seed)
        mode = draw_mode(rng, longest, _BLOCK_SIZE, (16, 37, 64))
        selected = rng.sample(subjects, 6)
        run_schedule(core, selected, mode, seed, tally)
    _report(report, "SmolLM2-135M (against transformers)", tally, NUM_REAL)


def _alone(core: CoreLab, prompts: Sequence[tuple[int, ...]], count: int) -> list[Subject]:
    """Return the tokens of each prompt, computed alone in a plain engine."""
    subjects = []
    for prompt in prompts:
        running = core.start(Mode("guaranteed_no_evict", prefix_caching=False, max_prefill_tokens=1000))
        tokens = run_all(running, [greedy("alone", prompt, count)])["alone"]
        subjects.append(Subject(prompt, tuple(tokens)))
    return subjects


def _report(report: Report, model: str, tally: Tally, num_schedules: int) -> None:
    report.figure(
        f"{model}: {tally.num_schedules} schedules, {tally.num_requests} requests, {tally.num_tokens} tokens; "
        f"{tally.num_preemptions} preemptions, {tally.num_recomputed_tokens} tokens recomputed, "
        f"{tally.num_prefix_hit_tokens} found in the cache"
    )
    report.require(
        tally.num_schedules == num_schedules and tally.num_wrong_tokens == 0,
        f"{model}: {tally.num_tokens - tally.num_wrong_tokens} of {tally.num_tokens} tokens equal those of the "
        f"request alone{'; first difference: ' + tally.first_difference if tally.first_difference else ''}",
    )
    report.require(
        min(tally.num_preemptions, tally.num_prefix_hit_tokens) > 0,
        f"{model}: sequences were preempted, and prefixes were found",
    )


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
