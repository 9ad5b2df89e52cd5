"""Random streams of requests through the scheduler, its policies and its allocators. Every step is checked.

`python -m tests.engines.mpi.scheduler.property_steps --steps 100000` runs every combination of the scheduling options
and prints one line for each. The pools are small, so blocks run out often.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import partial

from engines.config import SchedulerConfig
from engines.core import RequestOutput
from engines.errors import DeadlineExceeded, InvalidRequest, Overloaded, RequestFailed
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step import Step
from tests.engines.mpi.scheduler.property_cache import Broken, CheckedCache, Violation
from tests.engines.mpi.scheduler.property_checks import Checks
from tests.engines.mpi.scheduler.property_combinations import POLICIES, Combination, random_settings
from tests.engines.mpi.scheduler.property_report import Report, run_command, run_episodes
from tests.engines.mpi.scheduler.property_requests import VOCAB, Subject, Workload


class Episode:
    """One scheduler, from the first request to the end of all requests."""

    def __init__(self, combination: Combination, rng: random.Random, report: Report) -> None:
        self._rng = rng
        self._report = report
        self._combination = combination
        block_size, max_model_len = rng.randint(1, 5), rng.randint(6, 60)
        least = 0.3 if combination.windowed else 0.8
        num_blocks = 1 + int(max_model_len / block_size * rng.uniform(least, 2.5))
        limit = min(max_model_len, num_blocks * block_size + 1)
        longest_output = rng.randint(1, 40)
        self._largest_chunk = rng.choice((3, 10, 40)) if combination.windowed else 40
        self._settings = random_settings(rng, combination, self._largest_chunk)
        window = None
        if combination.windowed:
            chunk = self._largest_chunk if combination.chunked_prefill else max_model_len
            window = Window(rng.randint(1, 20), chunk)
            # Blocks that leave the window make room for new tokens.
            limit = max_model_len if window.max_blocks(block_size) <= num_blocks else limit
        self._blocks = make_block_manager(
            num_blocks, block_size, combination.paged, combination.prefix_caching, window
        )
        self._scheduler = Scheduler(
            SchedulerConfig(self._settings, combination.admission), self._blocks, max_model_len, VOCAB
        )
        self._cache = CheckedCache(num_blocks, block_size, window)
        siblings = rng.random() < 0.7
        self._workload = Workload(rng, limit, longest_output, siblings)
        self._live: dict[str, Subject] = {}
        self._checks = Checks(
            combination,
            self._scheduler,
            self._blocks,
            self._live,
            longest_prompt=limit,
            longest_output=min(longest_output, limit),
            patience=8 * max_model_len,
            window=window,
            siblings=siblings,
        )
        self._limit = limit
        self._now = 0.0
        self._wanted_waiting = 0

    def run(self, num_steps: int) -> None:
        for number in range(num_steps):
            if number % 100 == 0:
                self._wanted_waiting = self._rng.choice((0, 1, 3, 10))
            self._simulate_clients()
            self._step()
        while self._live:
            self._step()
        self._end()

    def _simulate_clients(self) -> None:
        rng = self._rng
        if rng.random() < 0.004:
            self._reconfigure()
        if self._live and rng.random() < 0.02:
            name = rng.choice(list(self._live))
            if not self._scheduler.abort(name) or self._scheduler.abort(name):
                raise Violation(f"{name}: abort must return True the first time and False the second time")
            del self._live[name]
        while self._scheduler.num_waiting <= self._wanted_waiting and rng.random() < 0.4:
            self._submit()

    def _reconfigure(self) -> None:
        """Change the limits and, sometimes, the policy or the prefill mode until the next change."""
        rng, before = self._rng, self._settings
        self._settings = random_settings(rng, self._combination, self._largest_chunk)
        if rng.random() < 0.3:
            policy, chunked = rng.choice(POLICIES), rng.random() < 0.5
            if self._combination.windowed:  # the window was sized for the initial prefill mode
                chunked = self._combination.chunked_prefill
            self._settings = replace(self._settings, scheduling_policy=policy, chunked_prefill=chunked)
        self._scheduler.reconfigure(self._settings)
        self._checks.reconfigured(before, self._settings)

    def _submit(self) -> None:
        subject = self._workload.make(self._now, self._live)
        request = subject.request
        if self._rng.random() < 0.01:
            self._submit_invalid_requests(subject)
        newcomers = [s.num_tokens for s in self._live.values() if s.sequence is None]
        settings = self._settings
        places = settings.max_num_seqs
        if settings.chunked_prefill:  # every running sequence needs a token of each step
            places = min(places, settings.max_num_batched_tokens)
        places = max(0, places - (len(self._live) - len(newcomers)))
        if newcomers and not self._scheduler.num_free_places:
            places = 0  # the next one could not be admitted
        limit, queued = settings.max_queued_tokens, sum(newcomers[places:])
        full = len(newcomers) - places >= settings.max_waiting or (
            limit is not None and queued > 0 and queued + subject.num_tokens > limit
        )
        try:
            self._scheduler.add(request)
        except Overloaded as refusal:
            if not full:
                raise Violation(f"refused although the queue is not full: {refusal}") from refusal
            self._report.num_refused += 1
            return
        if full:
            raise Violation(f"{request.id} was accepted although the queue is full")
        self._checks.accepted(subject)
        self._report.num_requests += 1

    def _submit_invalid_requests(self, subject: Subject) -> None:
        prompt = subject.request.prompt_token_ids
        too_long = replace(subject.request, id="too long", prompt_token_ids=prompt + (0,) * self._limit)
        for request in (too_long, *(s.request for s in self._live.values())):
            try:
                self._scheduler.add(request)
            except InvalidRequest:
                continue
            raise Violation(f"{request.id} was accepted")

    def _step(self) -> None:
        self._now += 1.0
        self._report.num_steps += 1
        self._expire()
        preemptions = self._num_preemptions()
        step = self._scheduler.schedule()
        if step is None:
            if self._live:
                raise Violation("there are requests, but nothing is computed")
            return
        subjects = [self._live[sequence.id] for sequence in step.sequences]
        preempted = self._num_preemptions() > preemptions
        self._checks.step(step, subjects, self._settings, preempted)
        self._cache.apply(step.plan)
        for output in self._compute(step):
            self._check_output(output)
        self._checks.accounting()

    def _num_preemptions(self) -> int:
        """Return all preemptions of live requests. The scheduler counts only those that lose computed tokens."""
        return sum(sequence.num_preemptions for sequence in self._scheduler._by_id.values())

    def _expire(self) -> None:
        due = {name for name, s in self._live.items() if (s.request.deadline or self._now + 1) <= self._now}
        outputs = self._scheduler.expire(self._now)
        if {output.id for output in outputs} != due or len(outputs) != len(due):
            raise Violation(f"{due} are due, but {outputs} were ended")
        for output in outputs:
            if output.error_kind != DeadlineExceeded.kind:
                raise Violation(f"{output}: expected a deadline error")
            self._finish(output.id)

    def _compute(self, step: Step) -> list[RequestOutput]:
        """Compute a step as the engine does: a step that fails is halved until the failing sequence is alone."""
        subjects = [self._live[sequence.id] for sequence in step.sequences]
        try:
            sampled = self._cache.compute(step, subjects)
        except Broken:
            if len(subjects) == 1:
                return self._scheduler.fail(step.sequences, RequestFailed("broken"))
            outputs = []
            for half in step.halves():
                outputs += self._compute(half)
            return outputs
        self._checks.written(self._cache.written)
        self._checks.computed(step, subjects)
        return self._scheduler.update(step, sampled, self._now, self._cache.scores(step))

    def _check_output(self, output: RequestOutput) -> None:
        subject = self._live.get(output.id)
        if subject is None:
            raise Violation(f"{output} comes after the last output of its request")
        if output.error_kind:
            faulty = min(subject.non_finite_from, subject.fails_from) < len(subject.tokens)
            if not faulty or output.error_kind != RequestFailed.kind or output.token_ids:
                raise Violation(f"{output}, but the request has no fault")
            self._report.num_failed += 1
            self._finish(output.id)
            return
        first = subject.num_tokens
        if list(output.token_ids) != subject.tokens[first : first + 1]:
            raise Violation(
                f"{output}: expected token {subject.num_reported} of {subject.tokens[subject.num_prompt_tokens :]}"
            )
        if not subject.num_reported:
            scores = [int(score.logprob) for score in output.prompt_logprobs]
            wanted = subject.request.sampling.prompt_logprobs is not None
            if scores != (list(range(1, subject.num_prompt_tokens)) if wanted else []):
                raise Violation(f"{output.id}: log-probabilities of prompt positions {scores}")
        subject.num_reported += 1
        last = subject.num_tokens == len(subject.tokens)
        if output.finish_reason is not (subject.reason if last else None):
            num_missing = len(subject.tokens) - subject.num_tokens
            raise Violation(f"{output}: wrong finish_reason, {num_missing} tokens are missing")
        if last:
            self._finish(output.id)

    def _finish(self, name: str) -> None:
        del self._live[name]

    def _end(self) -> None:
        scheduler, blocks, report = self._scheduler, self._blocks, self._report
        if scheduler.has_work or scheduler.schedule() is not None:
            raise Violation("all requests have ended, but the scheduler has work")
        if blocks.num_used or blocks.num_free + blocks.num_cached != blocks.num_blocks:
            raise Violation(f"all requests have ended, but {blocks.num_used} blocks are in use")
        exact = not (self._combination.prefix_caching or self._checks.siblings)
        least = self._checks.num_recomputed
        if scheduler.num_recomputed_tokens != least if exact else scheduler.num_recomputed_tokens < least:
            raise Violation(
                f"num_recomputed_tokens is {scheduler.num_recomputed_tokens}, but {least} tokens were recomputed"
            )
        report.num_preemptions += scheduler.num_preemptions
        report.num_recomputed_tokens += scheduler.num_recomputed_tokens
        report.num_hit_tokens += scheduler.num_prefix_hit_tokens
        report.num_left_out += self._checks.num_left_out


run = partial(run_episodes, Episode)
main = partial(run_command, __doc__, run)


if __name__ == "__main__":
    sys.exit(main())
