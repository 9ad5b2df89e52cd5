"""Beam search of one request: which hypotheses continue, which are finished, when the search ends, and which is the
best.

Only numbers: `beam_group.py` runs the hypotheses as sequences. Follows transformers' `generate(num_beams=...,
do_sample=False)` exactly, including its stopping rule. For exactly equal totals, where transformers leaves the order to
chance, the better parent comes first, then the smaller token id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from engines.core import FinishReason, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """One hypothesis. It stores only its last token and its parent, so that extending it copies nothing."""

    parent: _Hypothesis | None
    token_id: int
    logprob: float
    total: float
    """Sum of the log-probabilities."""
    rank: int
    """Rank among the hypotheses of equal length, the best first."""


class Continuation(NamedTuple):
    """A live hypothesis: one of the previous step's, and the token added to it."""

    parent: int
    """Place of the extended hypothesis among those live before this step."""
    token_id: int


class BeamResult(NamedTuple):
    """The best hypothesis at the end."""

    token_ids: tuple[int, ...]
    """Output tokens, including the stop token if one ended the hypothesis."""
    logprobs: tuple[float, ...]
    """Log-probability of each token after penalties and bans, as given in the candidates."""
    finish_reason: FinishReason
    """`EOS_TOKEN` or `LENGTH`."""


class BeamSearch:
    """The hypotheses of one request. At first only the prompt is live.

    The score of a finished hypothesis is its sum of log-probabilities / number of its tokens ** length_penalty,
    including the stop token. The `num_beams` best finished hypotheses are kept. As in transformers, a stop token ends a
    hypothesis only if it is among the `num_beams` best continuations of the step. Once `num_beams` finished hypotheses
    are kept, the search ends

    - with early_stopping: at once;
    - otherwise: when the best live hypothesis, scored as if it ended here, is not better than the worst that is kept.

    Hypotheses that are live after `max_new_tokens` end there.
    """

    def __init__(self, params: SamplingParams) -> None:
        """params: max_new_tokens ** length_penalty must be a float above 0."""
        self._params = params
        self._num_beams = params.num_beams
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._live = [_Hypothesis(None, -1, 0.0, 0.0, 0)]
        self._finished: list[tuple[float, _Hypothesis]] = []
        """Finished hypotheses with their scores, the best first."""
        self._num_steps = 0

    @property
    def num_live(self) -> int:
        """Number of live hypotheses: 1 at first, `num_beams` after the first step, 0 when the search is over."""
        return len(self._live)

    @property
    def done(self) -> bool:
        return not self._live

    def advance(self, candidates: Sequence[TokenLogprobs]) -> list[Continuation]:
        """Extend each live hypothesis by one token.

        candidates: for each live hypothesis, in order, its most likely next tokens with their log-probabilities after
        penalties and bans. At least num_beams + max(num_beams, number of stop tokens), or all that there are, so that
        enough remain when stop tokens are among them. Candidates of probability 0 are ignored.

        Returns the hypotheses that are live from now on; none when the search is over. There are `num_beams` of them,
        unless the step has fewer possible continuations. Their order has no meaning, but the first continuation of a
        hypothesis takes its place, so that as few sequences as possible are copied.

        Raises:
            ValueError: no candidate has a probability above 0, and nothing has finished yet.
        """
        self._num_steps += 1
        is_last_step = self._num_steps >= self._params.max_new_tokens
        places: dict[int, int] = {}
        live: list[_Hypothesis] = []
        for rank, (negated, _, token_id, place, logprob) in enumerate(self._ranked(candidates)):
            ends = is_last_step or token_id in self._stop_token_ids
            if ends and rank >= self._num_beams:
                continue
            hypothesis = _Hypothesis(self._live[place], token_id, logprob, -negated, rank)
            if ends:
                self._finished.append((self._score(-negated), hypothesis))
                continue
            places[rank] = place
            live.append(hypothesis)
            if len(live) == self._num_beams:
                break
        self._finished.sort(key=lambda scored: scored[0], reverse=True)
        del self._finished[self._num_beams :]
        if not live and not self._finished:
            raise ValueError("every continuation has probability 0")
        if self._is_over(live):
            self._live = []
            return []
        self._live = _keep_places(live, places)
        return [Continuation(places[hypothesis.rank], hypothesis.token_id) for hypothesis in self._live]

    def best(self) -> BeamResult:
        """Return the best hypothesis. The search must be over."""
        _, last = self._finished[0]
        token_ids, logprobs = [], []
        hypothesis = last
        while hypothesis.parent is not None:
            token_ids.append(hypothesis.token_id)
            logprobs.append(hypothesis.logprob)
            hypothesis = hypothesis.parent
        ended = last.token_id in self._stop_token_ids
        reason = FinishReason.EOS_TOKEN if ended else FinishReason.LENGTH
        return BeamResult(tuple(token_ids[::-1]), tuple(logprobs[::-1]), reason)

    def _ranked(self, candidates: Sequence[TokenLogprobs]) -> list[tuple[float, int, int, int, float]]:
        """Return (negated total, parent's rank, token id, parent's place, log-probability) of each candidate, the
        best first."""
        return sorted(
            (-(parent.total + logprob), parent.rank, token_id, place, logprob)
            for place, (parent, continuations) in enumerate(zip(self._live, candidates, strict=True))
            for token_id, logprob in continuations
            if logprob > -inf
        )

    def _score(self, total: float) -> float:
        """Return the score of a hypothesis with this sum of log-probabilities if it ends in this step."""
        return total / float(self._num_steps**self._params.length_penalty)

    def _is_over(self, live: list[_Hypothesis]) -> bool:
        if not live:
            return True
        if len(self._finished) < self._num_beams:
            return False
        return self._params.early_stopping or self._score(live[0].total) <= self._finished[-1][0]


def _keep_places(live: list[_Hypothesis], places: dict[int, int]) -> list[_Hypothesis]:
    """Put the first child of each parent in the parent's place. The others fill the remaining places.

    places: place of the parent, by the rank of the hypothesis.
    """
    order: list[_Hypothesis | None] = [None] * len(live)
    others = []
    for hypothesis in live:
        place = places[hypothesis.rank]
        if place < len(order) and order[place] is None:
            order[place] = hypothesis
        else:
            others.append(hypothesis)
    rest = iter(others)
    return [next(rest) if hypothesis is None else hypothesis for hypothesis in order]
