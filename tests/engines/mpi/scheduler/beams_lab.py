"""Beam search without tensors: a search that runs alone, and a fake model that returns candidates."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

from engines.core import Request, SampledToken, SamplingParams, TokenLogprobs
from engines.mpi.scheduler.beam_search import BeamResult, BeamSearch
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import WANT_LOGITS, StepPlan
from tests.engines.mpi.fakes import FakeModel, next_token

_VOCAB = 12


def candidates(history: Sequence[int]) -> TokenLogprobs:
    """Return candidates in random order, as a pure function of `history`. Many have equal log-probabilities."""
    numbers = random.Random(zlib.crc32(bytes(history)))
    return tuple((token, -numbers.randrange(1, 9) / 4) for token in numbers.sample(range(_VOCAB), _VOCAB))


def expected_beam_result(
    request: Request, candidates_of: Callable[[tuple[int, ...]], TokenLogprobs] = candidates
) -> BeamResult:
    """Run the search alone, with plain lists as hypotheses. candidates_of: the candidates after these tokens."""
    search = BeamSearch(request.sampling)
    live = [request.prompt_token_ids]
    while not search.done:
        continuations = search.advance([candidates_of(tokens) for tokens in live])
        live = [(*live[parent], token) for parent, token in continuations]
    return search.best()


def beam_request(
    name: str, prompt: Sequence[int], num_beams: int, max_new_tokens: int, **params: object
) -> Request:
    sampling = SamplingParams(max_new_tokens, num_beams=num_beams, **params)  # type: ignore[arg-type]
    return Request(name, tuple(prompt), sampling, 0.0)


class BeamModel(FakeModel):
    """Returns candidates along with the next token, computed from the cache contents."""

    def sample(self, step: Step) -> list[SampledToken]:
        self.run(step.plan)
        return [SampledToken(next_token(seen), top=candidates(seen)) for seen in self._histories(step.plan)]

    def _histories(self, plan: StepPlan) -> list[list[int]]:
        return [
            [self.slots[self._slot(row, position)] for position in self._seen(start + count)]
            for row, start, count, want in zip(
                plan.rows, plan.starts, plan.query_lens, plan.wants, strict=True
            )
            if want & WANT_LOGITS
        ]
