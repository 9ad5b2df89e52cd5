"""The sequences of one request with beam search. They advance in lockstep and share computed pages.

The first sequence represents the request in the scheduler. The others are its `companions`, admitted and removed with
it. A beam that has nothing to compute until the others are computed is in no step.
"""

from __future__ import annotations

from engines.core import RequestOutput, TokenLogprobs
from engines.mpi.scheduler.beam_search import BeamResult, BeamSearch
from engines.mpi.scheduler.planner import StepPlanner
from engines.mpi.scheduler.sequence import Sequence


class BeamGroup:
    """The beams of one request. Owned by the scheduler; nothing else modifies it."""

    def __init__(self, sequence: Sequence) -> None:
        """sequence: the request's sequence; its companions are created here."""
        sampling = sequence.request.sampling
        for number in range(2, sampling.num_beams + 1):
            companion = Sequence(sequence.request, sequence.number, f"{sequence.id}/beam-{number}")
            companion.token_ids.clear()
            sequence.companions.append(companion)
        self._sequences = [sequence, *sequence.companions]
        """Sequences by place. The first `num_live` places hold the live hypotheses."""
        self._search = BeamSearch(sampling)
        self._candidates: dict[Sequence, TokenLogprobs] = {}
        """Next-token candidates of the live hypotheses, as far as they are known: a step may compute only some of
        them."""

    def process(
        self, sequence: Sequence, candidates: TokenLogprobs, planner: StepPlanner
    ) -> RequestOutput | None:
        """Process the candidates of a sequence that is computed to its end. Returns the output when the search is
        over."""
        self._candidates[sequence] = candidates
        live = self._sequences[: self._search.num_live]
        if len(self._candidates) < len(live):
            return None
        continuations = self._search.advance([self._candidates[one] for one in live])
        self._candidates.clear()
        if self._search.done:
            return self._finish(self._search.best())
        for place, (parent, token_id) in enumerate(continuations):
            if parent != place:
                source, sequence = self._sequences[parent], self._sequences[place]
                planner.replace(source, sequence)
                sequence.token_ids[:] = [*source.token_ids, token_id]
        for place, (parent, token_id) in enumerate(continuations):
            if parent == place:
                self._sequences[place].token_ids.append(token_id)
        return None

    def _finish(self, best: BeamResult) -> RequestOutput:
        first = self._sequences[0]
        for sequence in self._sequences:
            sequence.token_ids[:] = [*first.request.prompt_token_ids, *best.token_ids]
        return RequestOutput(
            first.id,
            best.token_ids,
            best.logprobs if first.request.sampling.logprobs else (),
            finish_reason=best.finish_reason,
            num_cached_tokens=first.num_cached_tokens,
        )
