"""The scheduler: accepts requests, and turns the results of steps into outputs.

The planner (`planner.py`) selects what each step computes. Nothing here knows tensors or reads a clock: callers pass
the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from engines.config import SchedulerConfig
from engines.core import FinishReason, PromptLogprob, Request, RequestOutput, SampledToken, SchedulerSettings
from engines.errors import DeadlineExceeded, EngineError, InvalidRequest, RequestFailed, tokens_generated
from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.scheduler.beam_group import BeamGroup
from engines.mpi.scheduler.planner import StepPlanner
from engines.mpi.scheduler.request_check import check_queue, check_request
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import UNKNOWN_TOKEN, WANT_LOGITS

_new = tuple.__new__
_FEW_DEADLINES = 64


class Scheduler:
    """All requests of the engine, waiting and running."""

    def __init__(
        self, config: SchedulerConfig, blocks: BlockManager, max_model_len: int, vocab_size: int
    ) -> None:
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._planner = StepPlanner(config, blocks)
        self._by_id: dict[str, Sequence] = {}
        self._beams: dict[str, BeamGroup] = {}
        """Beam groups of the requests with beam search, by request id."""
        self._num_added = 0
        self._first_token_sequences: list[Sequence] = []
        self._deadlines: list[tuple[float, int, str]] = []
        """A heap of (deadline, number, id). At most half of it, and a few more, are requests that have ended."""

    @property
    def settings(self) -> SchedulerSettings:
        return self._planner.settings

    @property
    def num_waiting(self) -> int:
        return len(self._planner.waiting)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens of all waiting sequences."""
        return self._planner.waiting.num_tokens

    @property
    def num_running(self) -> int:
        return len(self._planner.running)

    @property
    def num_preemptions(self) -> int:
        return self._planner.num_preemptions

    @property
    def num_prefix_hit_tokens(self) -> int:
        return self._planner.num_prefix_hit_tokens

    @property
    def num_recomputed_tokens(self) -> int:
        return self._planner.num_recomputed_tokens

    @property
    def has_work(self) -> bool:
        return bool(self._by_id)

    def request_ids(self) -> list[str]:
        """Return the ids of all requests, waiting or running, in the order of arrival."""
        return list(self._by_id)

    @property
    def num_free_places(self) -> int:
        """Number of sequences that can start at once; 0 while the next one has to wait for another reason."""
        if self._planner.is_blocked:
            return 0
        return max(0, self.settings.max_running - self.num_running - self._planner.waiting.num_preempted)

    def reconfigure(self, settings: SchedulerSettings) -> None:
        """Apply new settings from the next step on; see `StepPlanner.reconfigure`."""
        self._planner.reconfigure(settings)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: the request can never run, or its id is in use.
            Overloaded: the queue is full.
        """
        sequence = Sequence(request, self._num_added)
        if sequence.id in self._by_id:
            raise InvalidRequest(f"request id {sequence.id!r} is in use")
        check_request(sequence, self.settings, self._blocks, self._max_model_len, self._vocab_size)
        check_queue(sequence, self.settings, self._planner.waiting, self.num_free_places)
        self._num_added += 1
        sibling = self._by_id.get(request.same_prompt_as)
        if sibling is not None and _shares_prompt(sequence, sibling):
            sequence.sibling = sibling
        if sequence.is_beam:
            self._beams[request.id] = BeamGroup(sequence)
        self._by_id[sequence.id] = sequence
        self._planner.waiting.add(sequence)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, sequence.number, sequence.id))

    def abort(self, request_id: str) -> Sequence | None:
        """Remove a request and free its blocks. Returns its sequence; None when the request is unknown or has ended."""
        sequence = self._by_id.get(request_id)
        if sequence is not None:
            self._remove(sequence)
        return sequence

    def expire(self, now: float) -> list[RequestOutput]:
        """End the requests whose deadline has passed."""
        outputs: list[RequestOutput] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, request_id = heapq.heappop(self._deadlines)
            sequence = self._by_id.get(request_id)
            if sequence is not None and sequence.number == number:
                error = DeadlineExceeded(
                    f"the request timed out; {tokens_generated(sequence.num_output_tokens)}"
                )
                outputs += self.fail([sequence], error)
        return outputs

    def fail(self, sequences: Iterable[Sequence], error: EngineError) -> list[RequestOutput]:
        """End sequences with an error."""
        outputs = []
        for one in sequences:
            sequence = self._by_id.get(one.request.id)
            if sequence is not None:
                outputs.append(RequestOutput.failed(sequence.id, error))
                self._remove(sequence)
        return outputs

    def schedule(self) -> Step | None:
        """Plan the next step, or None when there is nothing to compute."""
        return self._planner.schedule() if self._by_id else None

    def pop_started(self) -> list[Sequence]:
        """Return the sequences admitted for the first time since the last call."""
        started, self._planner.started = self._planner.started, []
        return started

    def pop_first_token_sequences(self) -> list[Sequence]:
        """Return the sequences that produced their first token since the last call."""
        sequences, self._first_token_sequences = self._first_token_sequences, []
        return sequences

    def update(
        self,
        step: Step,
        tokens: list[SampledToken],
        now: float,
        prompt_logprobs: Iterable[list[PromptLogprob]] = (),
    ) -> list[RequestOutput]:
        """Call `begin` and `finish` for a step that was already executed."""
        self.begin(step)
        return self.finish(step, tokens, now, prompt_logprobs)

    def begin(self, step: Step) -> None:
        """Mark a step as in flight, so that the next one can be planned before its tokens are known. The step's
        tokens count as computed, and an `UNKNOWN_TOKEN` stands for each sampled token until `finish` replaces it."""
        planner, decodes = self._planner, step.num_decodes
        for sequence, start in zip(step.sequences[:decodes], step.plan.starts[:decodes], strict=True):
            if sequence.done:
                continue
            sequence.num_computed_tokens = start + 1
            sequence.num_in_flight += 1
            # Beams do not run ahead: all results of a step are needed to select the beams that continue.
            if not sequence.is_beam:
                sequence.num_pending += 1
                sequence.token_ids.append(UNKNOWN_TOKEN)
                if start + 2 >= sequence.max_num_tokens:
                    planner.mark_complete(sequence)
        for sequence, start, count, want in step.prefills:
            if sequence.done:
                continue
            sequence.num_computed_tokens = start + count
            sequence.num_in_flight += count
            if want & WANT_LOGITS and not sequence.is_beam:
                sequence.num_pending += 1
                sequence.token_ids.append(UNKNOWN_TOKEN)
                if not sequence.is_complete:
                    planner.mark_decoding(sequence)

    def finish(
        self,
        step: Step,
        tokens: list[SampledToken],
        now: float,
        prompt_logprobs: Iterable[list[PromptLogprob]] = (),
    ) -> list[RequestOutput]:
        """Process the results of a step in flight. Returns the outputs of all sequences that gained a token or ended.
        Some sequences of the step may have ended or been preempted since it began.

        tokens: one for each of `step.sampled`; prompt_logprobs: one list for each of `step.scored`.
        """
        decodes = step.num_decodes
        places = []
        for sequence, start, count, want in step.prefills:
            _mark_settled(sequence, count)
            if want & WANT_LOGITS:
                places.append(start + count)
        for (sequence, _, _), scores in zip(step.scored, prompt_logprobs, strict=True):
            sequence.prompt_logprobs.extend(scores)
        outputs = self._process_decodes(step, tokens[:decodes], now)
        for sequence, place, token in zip(step.sampled[decodes:], places, tokens[decodes:], strict=True):
            outputs += self._process_token(sequence, token, now, place)
        return outputs

    def _process_decodes(self, step: Step, tokens: list[SampledToken], now: float) -> list[RequestOutput]:
        """Process the next tokens of decoding sequences. Written for speed: a step may have hundreds of them."""
        outputs: list[RequestOutput] = []
        block_size = self._blocks.block_size
        sequences, starts = step.sequences[: len(tokens)], step.plan.starts[: len(tokens)]
        for sequence, start, token in zip(sequences, starts, tokens, strict=True):
            token_id = token.token_id
            if (
                start < sequence.last_plain_start
                and token_id not in sequence.stop_token_ids
                and token.finite
                and sequence.row >= 0  # neither ended nor preempted since
            ):
                sequence.num_pending -= 1
                sequence.num_in_flight = in_flight = sequence.num_in_flight - 1
                sequence.token_ids[start + 1] = token_id
                if not (sequence.num_computed_tokens - in_flight) % block_size:
                    self._blocks.cache_full_pages(sequence)
                outputs.append(_new(RequestOutput, (sequence.id, (token_id,), (), (), (), None, "", "", 0)))
            else:
                _mark_settled(sequence, 1)
                outputs += self._process_token(sequence, token, now, start + 1)
        return outputs

    def _process_token(
        self, sequence: Sequence, token: SampledToken, now: float, place: int
    ) -> list[RequestOutput]:
        """Process a token outside the fast path: a first or last token, one with more than its id to report, or one
        that comes after its sequence ended or was preempted."""
        # An earlier token ended the sequence while this step was in flight, or its beam search ended in this step.
        if sequence.done:
            return []
        if not sequence.is_beam:
            sequence.num_pending -= 1
        if not token.finite:
            return self.fail([sequence], RequestFailed("the model's output for this request is not finite"))
        if not sequence.is_waiting:  # it may have been preempted while the step was in flight
            self._blocks.cache_full_pages(sequence)
        if sequence.is_beam:
            return self._process_beam(sequence, token)
        sequence.token_ids[place] = token.token_id
        reason = None
        if token.token_id in sequence.stop_token_ids:
            reason = FinishReason.EOS_TOKEN
        elif place + 1 >= sequence.max_num_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            if place == sequence.num_prompt_tokens:
                self._planner.share_prompt(sequence)
            self._remove(sequence)
        logprobs = () if token.logprob is None else (token.logprob,)
        top = (token.top,) if sequence.request.sampling.top_logprobs else ()
        output = RequestOutput(sequence.id, (token.token_id,), logprobs, top, (), reason)
        if sequence.first_token_time is None:
            sequence.first_token_time = now
            self._first_token_sequences.append(sequence)
            if token.logprob is None:
                sequence.last_plain_start = sequence.max_num_tokens - 2
            scores, num_cached = tuple(sequence.prompt_logprobs), sequence.num_cached_tokens
            output = output._replace(prompt_logprobs=scores, num_cached_tokens=num_cached)
        return [output]

    def _process_beam(self, sequence: Sequence, token: SampledToken) -> list[RequestOutput]:
        """Pass the candidates of one beam to its beam search."""
        output = self._beams[sequence.request.id].process(sequence, token.top, self._planner)
        if output is None:
            return []
        self._first_token_sequences.append(sequence)
        self._remove(self._by_id[output.id])
        return [output]

    def _remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        self._beams.pop(sequence.id, None)
        for one in (sequence, *sequence.companions):
            one.done = True
        self._planner.remove(sequence)
        if len(self._deadlines) > 2 * len(self._by_id) + _FEW_DEADLINES:
            live = {one.number for one in self._by_id.values()}
            self._deadlines = [each for each in self._deadlines if each[1] in live]
            heapq.heapify(self._deadlines)

    def check(self) -> None:
        """Audit all accounting, between two steps.

        Raises:
            RuntimeError: the accounting is inconsistent.
        """
        self._blocks.check()
        self._planner.check()
        for sequence in self._by_id.values():
            for one in (sequence, *sequence.companions):
                one.check()


def _mark_settled(sequence: Sequence, count: int) -> None:
    """Count `count` tokens of an ended step as settled, unless the sequence was preempted since."""
    if not sequence.is_waiting:
        sequence.num_in_flight -= count


def _shares_prompt(sequence: Sequence, other: Sequence) -> bool:
    return (
        other.request.prompt_token_ids == sequence.request.prompt_token_ids
        and other.request.tenant == sequence.request.tenant
        # Tokens that are taken over are not computed, so they have no log-probabilities.
        and sequence.request.sampling.prompt_logprobs is None
    )
