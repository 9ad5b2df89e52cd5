"""Random requests against the scheduler with one step in flight, over a model without tensors."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

from engines.config import SchedulerConfig
from engines.core import Request, RequestOutput, SampledToken, SchedulerSettings
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import UNKNOWN_TOKEN, WANT_LOGITS, StepPlan
from tests.engines.mpi.fakes import NUM_IDS, VOCAB, expected_output, make_request
from tests.engines.mpi.scheduler.beams_lab import BeamModel, beam_request, expected_beam_result

Mode = tuple[str, bool, bool, bool, bool]
"""Admission mode, paged attention, prefix caching, chunked prefill, sliding window."""

MODES = [
    (policy, paged, cached, chunked, windowed)
    for policy, paged, cached, chunked, windowed in product(
        ("max_utilization", "guaranteed_no_evict", "static_batch"),
        (True, False),
        (True, False),
        (True, False),
        (True, False),
    )
    if paged or (policy != "max_utilization" and not cached and not windowed)
]


class PipelinedModel(BeamModel):
    """Fills in unknown tokens of a plan with the last token sampled for their row."""

    def __init__(self, block_size: int, window: int | None = None) -> None:
        super().__init__(block_size, window=window)
        self._last: dict[int, int] = {}

    def compute(self, plan: StepPlan) -> list[int]:
        known, at = list(plan.token_ids), 0
        for row, count in zip(plan.rows, plan.query_lens, strict=True):
            if known[at] == UNKNOWN_TOKEN:
                assert count == 1
                known[at] = self._last[row]
            at += count
        tokens = super().compute(replace(plan, token_ids=known))
        sampled = [row for row, want in zip(plan.rows, plan.wants, strict=True) if want & WANT_LOGITS]
        self._last.update(zip(sampled, tokens, strict=True))
        return tokens


class PipelinedEngine:
    """The step loop with one step in flight. The model computes immediately; its tokens are collected a turn later."""

    def __init__(self, scheduler: Scheduler, blocks: BlockManager, window: int | None = None) -> None:
        self.scheduler = scheduler
        self.blocks = blocks
        self.window = window
        self.got: dict[str, list[RequestOutput]] = {}
        self.computed: list[tuple[str, int, int]] = []
        """Prefill chunks: sequence id, first position, number of tokens."""
        self._model = PipelinedModel(blocks.block_size, window)
        self._in_flight: tuple[Step, list[SampledToken]] | None = None

    @property
    def busy(self) -> bool:
        return self.scheduler.has_work or self._in_flight is not None

    def turn(self, now: float) -> None:
        step = self.scheduler.schedule()
        if step is None:
            self._collect(now)
        else:
            self._run(step, now)
        self.scheduler.check()

    def _run(self, step: Step, now: float) -> None:
        for sequence, start, length in zip(
            step.sequences, step.plan.starts, step.plan.query_lens, strict=True
        ):
            if start + length >= sequence.max_num_tokens:
                raise AssertionError(f"{sequence.id}: the last token of a sequence must not be computed")
        self.computed += [(sequence.id, start, count) for sequence, start, count, _ in step.prefills]
        tokens = self._model.sample(step)
        if any(sequence.is_beam for sequence in step.sampled):
            # The host selects the tokens of beams, so this step cannot stay in flight.
            self._collect(now)
            self._add_outputs(self.scheduler.update(step, tokens, now))
        else:
            self.scheduler.begin(step)
            self._collect(now)
            self._in_flight = (step, tokens)

    def _collect(self, now: float) -> None:
        previous, self._in_flight = self._in_flight, None
        if previous is not None:
            self._add_outputs(self.scheduler.finish(*previous, now))

    def _add_outputs(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.got.setdefault(output.id, []).append(output)


def make_engine(mode: Mode, rng: random.Random) -> PipelinedEngine:
    policy, paged, cached, chunked, windowed = mode
    settings = SchedulerSettings(
        max_num_seqs=rng.randint(1, 6),
        max_prefill_tokens=rng.randint(4, 30),
        max_num_batched_tokens=rng.randint(3, 40),
        max_waiting=1000,
        scheduling_policy=rng.choice(("fcfs", "priority", "fair")),
        chunked_prefill=chunked,
    )
    window = Window(rng.randint(1, 20), max_chunk=30 if chunked else 60) if windowed else None
    blocks = make_block_manager(rng.randint(16, 30), rng.randint(1, 4), paged, cached, window)
    scheduler = Scheduler(SchedulerConfig(settings, policy), blocks, 60, NUM_IDS)
    return PipelinedEngine(scheduler, blocks, window and window.num_tokens)


@dataclass(slots=True)
class Outcome:
    """Totals of several episodes."""

    num_requests: int = 0
    num_wrong: int = 0
    num_preemptions: int = 0


def run_episodes(mode: Mode, count: int, rng: random.Random) -> Outcome:
    """Run episodes, each with a new engine and 25 requests. Some requests are aborted."""
    outcome = Outcome()
    for _ in range(count):
        engine = make_engine(mode, rng)
        requests = _requests(engine, rng)
        aborted = _serve(engine, requests, rng)
        outcome.num_requests += len(requests)
        outcome.num_wrong += sum(
            not _is_correct(request, engine.got.get(name, []), name in aborted, engine.window)
            for name, request in requests.items()
        )
        outcome.num_preemptions += engine.scheduler.num_preemptions
        if engine.blocks.num_used:
            raise AssertionError(f"all requests have ended, but {engine.blocks.num_used} blocks are in use")
    return outcome


def _requests(engine: PipelinedEngine, rng: random.Random) -> dict[str, Request]:
    limit = min(60, engine.blocks.num_blocks * engine.blocks.block_size)
    requests: dict[str, Request] = {}
    for number in range(25):
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, limit // 3))]
        if rng.random() < 0.1:
            num_tokens = rng.randint(1, limit // 6)
            requests[f"r{number}"] = beam_request(f"r{number}", prompt[: limit // 6], 2, num_tokens)
            continue
        sibling = rng.choice([None, *requests]) if requests else None
        request = make_request(
            f"r{number}",
            requests[sibling].prompt_token_ids if sibling else prompt,
            rng.randint(1, limit // 2),
            stop=rng.sample(range(VOCAB), rng.choice((0, 1, 4))),
        )
        requests[request.id] = replace(request, same_prompt_as=sibling or "")
    return requests


def _serve(engine: PipelinedEngine, requests: dict[str, Request], rng: random.Random) -> set[str]:
    """Serve all requests to their end. Return the ids of aborted requests."""
    aborted: set[str] = set()
    waiting = list(requests.values())
    now = 0.0
    while waiting or engine.busy:
        now += 1.0
        while waiting and rng.random() < 0.3:
            request = waiting.pop(0)
            if request.sampling.num_beams > engine.scheduler.settings.max_num_seqs:
                del requests[request.id]
            else:
                engine.scheduler.add(request)
        if rng.random() < 0.03 and engine.scheduler.request_ids():
            aborted.add(name := rng.choice(engine.scheduler.request_ids()))
            engine.scheduler.abort(name)
        engine.turn(now)
        if now > 5000:
            raise AssertionError("the requests do not finish")
    return aborted


def _is_correct(request: Request, outputs: list[RequestOutput], aborted: bool, window: int | None) -> bool:
    if request.sampling.num_beams > 1:
        best = expected_beam_result(request, window)
        return aborted or [(one.token_ids, one.finish_reason) for one in outputs] == [
            (best.token_ids, best.finish_reason)
        ]
    tokens, reason = expected_output(request, window)
    got = [token for output in outputs for token in output.token_ids]
    if aborted:
        return got == tokens[: len(got)]
    finish_reasons = [None] * (len(tokens) - 1) + [reason]
    return got == tokens and [output.finish_reason for output in outputs] == finish_reasons
