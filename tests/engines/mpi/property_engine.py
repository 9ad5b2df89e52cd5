"""Random streams of requests through the whole engine: step loop, scheduler, the GPU path with steps in flight and
tokens sampled on the device, and the host's sampler. Every request must get what it gets alone.

`python -m tests.engines.mpi.property_engine --steps 5000` runs every combination of the scheduling options and prints
one line for each. The pools are small, so blocks run out often.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Sequence
from functools import partial
from math import isclose, isnan

import torch

from engines.config import SchedulerConfig
from engines.core import AbortReason, PromptLogprob, RequestOutput
from engines.errors import DeadlineExceeded, InvalidRequest, Overloaded, RequestFailed
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.engine_core import EngineCore
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.trace import StepTrace
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from tests.engines.mpi.property_answers import Answer, expected_answer, random_request
from tests.engines.mpi.property_model import CPU, Faults, make_executor
from tests.engines.mpi.scheduler.property_cache import Violation
from tests.engines.mpi.scheduler.property_combinations import POLICIES, Combination, random_settings
from tests.engines.mpi.scheduler.property_report import Report, run_command, run_episodes
from tests.engines.mpi.scheduler.property_requests import VOCAB, Workload

_LARGEST_STEP, _MAX_NUM_SEQS = 60, 8


class Episode:
    """One engine, from the first request to the end of all requests."""

    def __init__(self, combination: Combination, rng: random.Random, report: Report) -> None:
        torch.set_num_threads(1)
        self._rng = rng
        self._report = report
        self._combination = combination
        block_size, max_model_len = rng.randint(1, 5), rng.randint(6, _LARGEST_STEP)
        num_blocks = 1 + int(max_model_len / block_size * rng.uniform(0.8, 1.2))
        self._largest_chunk = rng.choice((1, 1, 3, 10, 40))
        window = None
        if combination.windowed:
            window = Window(
                rng.randint(1, 20), self._largest_chunk if combination.chunked_prefill else max_model_len
            )
        self._window = window and window.num_tokens
        self._blocks = make_block_manager(
            num_blocks, block_size, combination.paged, combination.prefix_caching, window
        )
        settings = random_settings(rng, combination, self._largest_chunk)
        self._scheduler = Scheduler(
            SchedulerConfig(settings, combination.admission), self._blocks, max_model_len, VOCAB + 1
        )
        largest = LargestStep(_LARGEST_STEP, _MAX_NUM_SEQS, max_model_len)
        graphs = rng.choice((None, (), (1, 2, 4, 8), (2, 5), (1, 2, 4, 8)))
        faults = Faults(rng.choice((0.0, 0.0, 0.02, 0.1)), rng)
        self._executor = make_executor(num_blocks, block_size, self._window, largest, graphs, faults)
        self._sampler = Sampler(VOCAB, CPU)
        self._now = 0.0
        self._core = EngineCore(
            self._scheduler,
            self._blocks,
            self._executor,  # type: ignore[arg-type]
            self._sampler,
            Stopwatch(lambda: 0.0),
            StepTrace(""),
            largest,
            lambda: self._now,
        )
        limit = min(max_model_len, num_blocks * block_size + 1)
        self._longest_search = max(1, limit // 6)
        self._workload = Workload(rng, limit, rng.choice((10, 60)), siblings=rng.random() < 0.7)
        self._live: dict[str, Answer] = {}
        self._wanted_waiting = 0
        self._patience = 20 * max_model_len

    def run(self, num_steps: int) -> None:
        for number in range(num_steps):
            if number % 100 == 0:
                self._wanted_waiting = self._rng.choice((0, 1, 3, 10))
            self._simulate_clients()
            self._step()
        left = self._patience * (len(self._live) + 1)
        while self._core.has_work:
            self._step()
            left -= 1
            if not left:
                raise Violation(f"{list(self._live)} do not end")
        self._end()

    def _simulate_clients(self) -> None:
        rng = self._rng
        if rng.random() < 0.01:
            self._reconfigure()
        if self._live and rng.random() < 0.02:
            name = rng.choice(list(self._live))
            self._core.abort(name, AbortReason.CLIENT_LEFT)
            del self._live[name]
        while self._scheduler.num_waiting <= self._wanted_waiting and rng.random() < 0.4:
            self._submit()

    def _reconfigure(self) -> None:
        rng, combination = self._rng, self._combination
        settings = random_settings(rng, combination, self._largest_chunk)
        chunked = combination.chunked_prefill
        if not combination.windowed:  # the window was sized for the initial prefill mode
            chunked = rng.random() < 0.5
        self._core.configure(
            dataclasses.asdict(settings)
            | {"scheduling_policy": rng.choice(POLICIES), "chunked_prefill": chunked}
        )

    def _submit(self) -> None:
        live = [answer.request for answer in self._live.values()]
        request = random_request(
            self._workload.make_request(self._now, live), self._rng, self._longest_search
        )
        try:
            self._core.add(request)
        except Overloaded:
            self._report.num_refused += 1
        except InvalidRequest as refusal:
            if request.sampling.num_beams == 1:
                raise Violation(f"{request} was refused: {refusal}") from refusal
            self._report.num_refused += 1
        else:
            self._live[request.id] = expected_answer(request, self._window)
            self._report.num_requests += 1

    def _step(self) -> None:
        self._now += 1.0
        self._report.num_steps += 1
        for output in self._core.step():
            self._check_output(output)
        self._scheduler.check()
        if self._scheduler.request_ids() != list(self._live):
            raise Violation(
                f"alive are {list(self._live)}, but the engine has {self._scheduler.request_ids()}"
            )

    def _check_output(self, output: RequestOutput) -> None:
        answer = self._live.get(output.id)
        if answer is None:
            raise Violation(f"{output} comes after the last output of its request")
        first, last = answer.num_reported, answer.num_reported + len(output.token_ids)
        answer.num_reported = last
        left = answer.tokens[last:]
        _check_tokens(output, answer, first, last)
        if output.error_kind:
            due = answer.request.deadline is not None and answer.request.deadline <= self._now
            fails = not left and answer.reason is None
            if not {DeadlineExceeded.kind: due, RequestFailed.kind: fails}.get(output.error_kind):
                raise Violation(
                    f"{output}: expected no such error, {len(left)} tokens are missing, of {answer}"
                )
        elif output.finish_reason is not (None if left else answer.reason):
            raise Violation(f"{output}: wrong finish_reason, {len(left)} tokens are missing, of {answer}")
        if output.finished:
            self._report.num_failed += output.error_kind == RequestFailed.kind
            del self._live[output.id]

    def _end(self) -> None:
        scheduler, report = self._scheduler, self._report
        if self._live or self._blocks.num_used:
            raise Violation(
                f"nothing runs, but {self._blocks.num_used} blocks are in use, and alive: {self._live}"
            )
        if self._sampler._states:
            raise Violation(f"the sampler has not forgotten {list(self._sampler._states)}")
        report.num_preemptions += scheduler.num_preemptions
        report.num_recomputed_tokens += scheduler.num_recomputed_tokens
        report.num_hit_tokens += scheduler.num_prefix_hit_tokens


def _check_tokens(output: RequestOutput, answer: Answer, first: int, last: int) -> None:
    """Check tokens [first, last) of the answer, and what is reported with them."""
    tokens, sampling = answer.tokens[first:last], answer.request.sampling
    if output.token_ids != tuple(token.token_id for token in tokens):
        raise Violation(f"{output}: expected {tokens}, tokens {first} to {last - 1} of {answer.request}")
    if not tokens or sampling.num_beams > 1:
        return
    logprobs = [PromptLogprob(token.logprob, token.top) for token in tokens if token.logprob is not None]
    tops = output.top_logprobs or ((),) * len(output.logprobs)
    if not _are_close([PromptLogprob(*each) for each in zip(output.logprobs, tops, strict=True)], logprobs):
        raise Violation(f"{output}: expected the log-probabilities {logprobs}")
    if not first and not _are_close(output.prompt_logprobs, answer.prompt_logprobs):
        raise Violation(f"{output}: expected the prompt's log-probabilities {answer.prompt_logprobs}")


def _are_close(found: Sequence[PromptLogprob], expected: Sequence[PromptLogprob]) -> bool:
    return len(found) == len(expected) and all(
        (isclose(one.logprob, other.logprob, abs_tol=1e-4) or (isnan(one.logprob) and isnan(other.logprob)))
        and (isnan(one.logprob) or [token for token, _ in one.top] == [token for token, _ in other.top])
        for one, other in zip(found, expected, strict=True)
    )


run = partial(run_episodes, Episode)
main = partial(run_command, __doc__, run)


if __name__ == "__main__":
    sys.exit(main())
