"""Greedy tokens do not depend on the batch, chunks, preemption, cached prefixes, paging or admission.

The engine runs in one process, without sockets. Each schedule draws a mode (admission, paging, prefix cache,
order, chunks or pauses, limits, pool size) and 3 to 14 requests with random moments of arrival, some with the same
prompt. The expected tokens are those of the request alone for the tiny model, and those of transformers for the
bundled model.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engines.core import Request
from tests.support.core_lab import CoreLab, Mode, greedy, run_all
from tests.support.oracle import oracle
from tests.support.prompts import ALL
from tests.verify.lab import Lab, Report, run_alone

NUM_TINY, NUM_REAL = 1000, 50
_REAL_TOKENS = 24
_BLOCK_SIZE = 16
_POLICIES = ("max_utilization", "guaranteed_no_evict", "static_batch")
_ORDERS = ("fcfs", "priority", "fair")


@dataclass(frozen=True, slots=True)
class Subject:
    """A prompt and its greedy continuation."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Tally:
    """Totals over many schedules."""

    num_schedules: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    num_wrong_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    first_difference: str = ""


def draw_mode(
    rng: random.Random, longest: int, block_size: int, prefills: Sequence[int] = (1, 3, 16, 37, 64)
) -> Mode:
    """Draw a mode, with limits so tight that prompts are chunked and sequences preempted.

    prefills: values for the maximum of prompt tokens per step.
    """
    policy = rng.choice(_POLICIES)
    paged = policy == "max_utilization" or rng.random() < 0.6
    prefill = rng.choice(prefills)
    max_tokens = max(prefill, rng.choice((4, 16, 64)))
    min_blocks = -(-longest // block_size) + 1
    return Mode(
        policy=policy,
        paged=paged,
        prefix_caching=paged and rng.random() < 0.6,
        scheduling_policy=rng.choice(_ORDERS),
        chunked_prefill=rng.random() < 0.7,
        max_num_seqs=rng.choice((1, 2, 5, 8, 16)),
        max_prefill_tokens=prefill,
        max_num_batched_tokens=max_tokens,
        num_blocks=rng.choice((min_blocks, 2 * min_blocks, 6 * min_blocks)),
        more={"waiting_served_ratio": rng.choice((0.0, 0.3)), "max_waiting_tokens": rng.choice((2, 20))},
    )


def run_schedule(lab: CoreLab, subjects: Sequence[Subject], mode: Mode, seed: int, tally: Tally) -> None:
    """Run a random schedule: some subjects in any order, some twice, some as siblings that share a prompt."""
    rng = random.Random(seed)
    drawn = [rng.choice(subjects) for _ in range(rng.randint(3, 14))]
    requests: list[Request] = []
    expected: dict[str, tuple[int, ...]] = {}
    for number, subject in enumerate(drawn):
        count = rng.randint(1, len(subject.tokens))
        request = greedy(
            str(number), subject.prompt, count, priority=rng.randint(0, 2), tenant=rng.choice(("", "a", "b"))
        )
        if requests and rng.random() < 0.2:
            twin = rng.choice(requests)
            subject = next(s for s in subjects if s.prompt == twin.prompt_token_ids)
            request = replace(
                request, prompt_token_ids=twin.prompt_token_ids, tenant=twin.tenant, same_prompt_as=twin.id
            )
        requests.append(request)
        expected[request.id] = subject.tokens[:count]
    running = lab.start(mode)
    tokens = run_all(running, requests, gap=rng.choice((0.0, 0.7, 3.0, 8.0)), seed=seed)
    tally.num_schedules += 1
    tally.num_preemptions += running.scheduler.num_preemptions
    tally.num_recomputed_tokens += running.scheduler.num_recomputed_tokens
    tally.num_prefix_hit_tokens += running.scheduler.num_prefix_hit_tokens
    for name, want in expected.items():
        got = tuple(tokens[name])
        num_equal = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), len(want))
        tally.num_requests += 1
        tally.num_tokens += len(want)
        tally.num_wrong_tokens += len(want) - min(num_equal, len(got))
        if got != want and not tally.first_difference:
            tally.first_difference = f"seed {seed}, request {name}, token {num_equal}: {mode}"


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
    longest = max(len(subject.prompt) for subject in subjects) + _REAL_TOKENS
    # Where decodes pause for prompts, a whole prompt is one step.
    core = CoreLab(lab.model, lab.folder, block_size=_BLOCK_SIZE, num_blocks=400, max_step_tokens=longest)
    tally = Tally()
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
        tally.num_schedules == num_schedules and not tally.num_wrong_tokens and not tally.first_difference,
        f"{model}: {tally.num_tokens - tally.num_wrong_tokens} of {tally.num_tokens} tokens equal those of the "
        f"request alone{'; first difference: ' + tally.first_difference if tally.first_difference else ''}",
    )
    report.require(
        min(tally.num_preemptions, tally.num_prefix_hit_tokens) > 0,
        f"{model}: sequences were preempted, and prefixes were found",
    )


if __name__ == "__main__":
    run_alone(verify)
