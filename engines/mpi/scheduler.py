"""Who computes what in the next step: rolling (continuous) batching after Orca (Yu et al., OSDI 2022).

One rule: `num_computed_tokens` catches up with `num_tokens`. There is no prefill and no decode phase; a chunk of a
prompt rides with the other sequences' single tokens (Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310).
Knows neither tensors nor a clock: the time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from engines.config import SchedulerConfig
from engines.core import FinishReason, Request, RequestOutput
from engines.errors import EngineError, InvalidRequest, Overloaded, RequestFailed
from engines.mpi.block_manager import BlockManager
from engines.mpi.sequence import Sequence
from engines.mpi.step_plan import PlanKind, ScheduledSequence, StepPlan


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What sampling gave one sequence. `finite` is False when its logits were not, and then the token means nothing."""

    token_id: int
    logprob: float | None = None
    finite: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A plan, and whose it is: `sequences[i]` is the owner of `plan.sequences[i]`."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that gain a token, in the plan's order."""
        return [s for s, planned in zip(self.sequences, self.plan.sequences, strict=True) if planned.sample]

    def halves(self) -> tuple[Step, Step]:
        """The same work as two steps; the first one scrubs."""
        middle = len(self.sequences) // 2
        first = StepPlan(PlanKind.STEP, self.plan.sequences[:middle], self.plan.scrub_blocks)
        second = StepPlan(PlanKind.STEP, self.plan.sequences[middle:])
        return Step(first, self.sequences[:middle]), Step(second, self.sequences[middle:])


class Scheduler:
    """Waiting and running sequences. First come, first served; admitted sequences run to their end."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager, max_model_len: int) -> None:
        self._config = config
        self._static = config.batch_scheduler_policy == "static_batch"
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._scrub: list[int] = []
        self._may_join = 0
        """So many at the head of the queue may join: as there are places, or those of a static batch being filled."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it can never fit, or its id is in use.
            Overloaded: the queue is full.
        """
        sequence = Sequence(request)
        self._check(sequence)
        # Those that the next step admits do not wait: a burst on an idle server is no full queue.
        places = self._config.max_num_seqs - len(self._running)
        if len(self._waiting) - places >= self._config.max_waiting:
            raise Overloaded(
                f"the queue is full: {self._config.max_waiting} requests are waiting already (job_queue_size)"
            )
        self._waiting.append(sequence)
        self._by_id[sequence.id] = sequence

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False when it is not known (any more)."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return False
        if sequence.num_output_tokens == 0:
            # Nobody has looked yet whether what it computed is finite.
            computed = -(-sequence.num_computed_tokens // self._blocks.block_size)
            self._scrub.extend(sequence.block_table[:computed])
        self._remove(sequence)
        return True

    def request_ids(self) -> list[str]:
        """All requests, waiting or running, in the order of arrival."""
        return list(self._by_id)

    def schedule(self, now: float) -> Step | None:
        """Plan the next step, or None when there is nothing to compute."""
        budget = self._config.max_prefill_tokens
        chosen: list[tuple[Sequence, int]] = []
        for sequence in self._running:
            count = sequence.num_tokens - sequence.num_computed_tokens
            if sequence.num_output_tokens == 0:
                count = min(count, budget)
                budget -= count
            if count:
                chosen.append((sequence, count))
        if not (self._static and self._running):
            self._may_join = min(len(self._waiting), self._config.max_num_seqs - len(self._running))
        while self._may_join and budget > 0:
            sequence = self._waiting[0]
            if not self._blocks.admit(sequence):
                self._may_join = 0
                break
            self._waiting.popleft()
            self._may_join -= 1
            self._running.append(sequence)
            sequence.scheduled_time = now
            count = min(sequence.num_tokens, budget)
            budget -= count
            chosen.append((sequence, count))
        if not chosen:
            return None
        return self._make_step(chosen)

    def update(self, step: Step, tokens: Iterable[SampledToken], now: float) -> list[RequestOutput]:
        """Take in what a step computed; returns the outputs of all sequences that gained a token or ended."""
        for sequence, planned in zip(step.sequences, step.plan.sequences, strict=True):
            sequence.num_computed_tokens = planned.seq_len
        return [
            self._take(sequence, token, now) for sequence, token in zip(step.sampled, tokens, strict=True)
        ]

    def fail(self, sequences: Iterable[Sequence], error: EngineError) -> list[RequestOutput]:
        """End sequences with an error; their blocks are scrubbed before anybody else reads them."""
        outputs = []
        for sequence in sequences:
            if sequence.id in self._by_id:
                outputs.append(RequestOutput(sequence.id, error_kind=error.kind, error_message=str(error)))
                self._scrub.extend(sequence.block_table)
                self._remove(sequence)
        return outputs

    def _check(self, sequence: Sequence) -> None:
        if sequence.id in self._by_id:
            raise InvalidRequest(f"request id {sequence.id!r} is in use")
        if not sequence.token_ids or sequence.request.sampling.max_new_tokens < 1:
            raise InvalidRequest("a request needs at least one prompt token and max_new_tokens of at least 1")
        worst = sequence.max_num_tokens
        limit = min(self._max_model_len, self._blocks.num_blocks * self._blocks.block_size + 1)
        if worst > limit:
            raise InvalidRequest(
                f"the prompt's {sequence.num_prompt_tokens} tokens and max_new_tokens="
                f"{sequence.request.sampling.max_new_tokens} come to {worst}, more than the limit of {limit} tokens"
            )

    def _make_step(self, chosen: list[tuple[Sequence, int]]) -> Step:
        planned = []
        for sequence, count in chosen:
            start = sequence.num_computed_tokens
            stop = start + count
            self._blocks.extend(sequence, stop)
            used = -(-stop // self._blocks.block_size)
            planned.append(
                ScheduledSequence(
                    token_ids=tuple(sequence.token_ids[start:stop]),
                    start=start,
                    block_table=tuple(sequence.block_table[:used]),
                    sample=stop == sequence.num_tokens,
                )
            )
        scrub, self._scrub = tuple(self._scrub), []
        return Step(StepPlan(PlanKind.STEP, tuple(planned), scrub), tuple(sequence for sequence, _ in chosen))

    def _take(self, sequence: Sequence, token: SampledToken, now: float) -> RequestOutput:
        if not token.finite:
            return self.fail([sequence], RequestFailed("the model's output for this request is not finite"))[
                0
            ]
        if sequence.first_token_time is None:
            sequence.first_token_time = now
        sequence.token_ids.append(token.token_id)
        sampling = sequence.request.sampling
        reason = None
        if token.token_id in sampling.stop_token_ids:
            reason = FinishReason.EOS_TOKEN
        elif sequence.num_output_tokens >= sampling.max_new_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._remove(sequence)
        logprobs = () if token.logprob is None else (token.logprob,)
        return RequestOutput(sequence.id, (token.token_id,), logprobs, reason)

    def _remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            place = self._waiting.index(sequence)
            del self._waiting[place]
            self._may_join -= place < self._may_join
        self._blocks.release(sequence)
