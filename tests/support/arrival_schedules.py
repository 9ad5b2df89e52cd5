"""Random arrival schedules: requests that share an engine must get the greedy tokens that each gets alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engines.core import Request
from tests.support.core_lab import CoreLab, Mode, greedy, run_all

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
