"""Beam search of one request: which hypotheses go on, which are finished, when it is over, and which is the best.

The numbers alone: whoever runs the hypotheses as sequences (`beam_group.py`) asks here what becomes of them. Follows
transformers' `generate(num_beams=..., do_sample=False)` to the letter, its stopping rule included; where totals are
exactly equal, which transformers leaves to chance, the better parent and then the smaller token id come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from engines.core import FinishReason, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """One way to go on. Each knows only its last token and what it grew from, so that growing copies nothing."""

    parent: _Hypothesis | None
    token_id: int
    logprob: float
    total: float
    """Sum of the log-probabilities."""
    rank: int
    """Its place among those of equal length, the best first."""


class Continuation(NamedTuple):
    """A live hypothesis, as one token more after a former one."""

    parent: int
    """Place of the former one among the live ones before this step."""
    token_id: int


class BeamResult(NamedTuple):
    """The best hypothesis at the end."""

    token_ids: tuple[int, ...]
    """The stop token too, where one ended it."""
    logprobs: tuple[float, ...]
    """Of each token, after penalties and bans, as the candidates brought it."""
    finish_reason: FinishReason
    """`EOS_TOKEN` or `LENGTH`."""
    score: float
    """Sum of the log-probabilities / number of tokens ** length_penalty."""


class BeamSearch:
    """The hypotheses of one request. At first a single one is live, the prompt.

    A hypothesis that ends scores its sum of log-probabilities / number of its tokens ** length_penalty, the stop
    token counted; the `num_beams` best of these are kept. As in transformers a stop token ends a hypothesis only where
    it is among the `num_beams` best continuations of the step, and the search is over as soon as so many are kept and

    - early_stopping: at once;
    - else: when the best live hypothesis, scored as if it ended here, is not better than the worst that is kept.

    What is live after `max_new_tokens` ends there.
    """

    def __init__(self, params: SamplingParams) -> None:
        """params: length_penalty any that leaves max_new_tokens ** length_penalty a float above 0."""
        self._params = params
        self._num_beams = params.num_beams
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._live = [_Hypothesis(None, -1, 0.0, 0.0, 0)]
        self._finished: list[tuple[float, _Hypothesis]] = []
        """With their scores, the best first."""
        self._num_steps = 0

    @property
    def num_live(self) -> int:
        """How many hypotheses go on: 1 at first, `num_beams` after the first step, 0 when the search is over."""
        return len(self._live)

    @property
    def done(self) -> bool:
        return not self._live

    def advance(self, candidates: Sequence[TokenLogprobs]) -> list[Continuation]:
        """Take each live hypothesis a token further.

        candidates: for each live hypothesis, in their order, its likeliest next tokens with their log-probabilities
        after penalties and bans: at least num_beams + max(num_beams, number of stop tokens), or all that there are,
        so that enough remain when stop tokens are among them. Those of probability 0 do not count.

        Returns the hypotheses that are live from now on; none when the search is over. `num_beams`, but for a step
        with fewer possible continuations. Their order means nothing; where one of the former hypotheses has a
        continuation, its first stands in its place, so that as few sequences as possible have to be copied.

        Raises:
            ValueError: there is no candidate of a probability above 0, and nothing has finished yet.
        """
        self._num_steps += 1
        at_the_end = self._num_steps >= self._params.max_new_tokens
        places: dict[int, int] = {}
        going_on: list[_Hypothesis] = []
        for rank, (negated, _, token_id, place, logprob) in enumerate(self._ranked(candidates)):
            ends = at_the_end or token_id in self._stop_token_ids
            if ends and rank >= self._num_beams:
                continue
            hypothesis = _Hypothesis(self._live[place], token_id, logprob, -negated, rank)
            if ends:
                self._finished.append((self._score(-negated), hypothesis))
                continue
            places[rank] = place
            going_on.append(hypothesis)
            if len(going_on) == self._num_beams:
                break
        self._finished.sort(key=lambda scored: scored[0], reverse=True)
        del self._finished[self._num_beams :]
        if not going_on and not self._finished:
            raise ValueError("no token may follow")
        if self._is_over(going_on):
            self._live = []
            return []
        self._live = _kept_in_place(going_on, places)
        return [Continuation(places[hypothesis.rank], hypothesis.token_id) for hypothesis in self._live]

    def best(self) -> BeamResult:
        """The outcome; only asked when the search is over."""
        score, last = self._finished[0]
        token_ids, logprobs = [], []
        hypothesis = last
        while hypothesis.parent is not None:
            token_ids.append(hypothesis.token_id)
            logprobs.append(hypothesis.logprob)
            hypothesis = hypothesis.parent
        ended = last.token_id in self._stop_token_ids
        reason = FinishReason.EOS_TOKEN if ended else FinishReason.LENGTH
        return BeamResult(tuple(token_ids[::-1]), tuple(logprobs[::-1]), reason, score)

    def _ranked(self, candidates: Sequence[TokenLogprobs]) -> list[tuple[float, int, int, int, float]]:
        """(negated total, parent's rank, token id, parent's place, log-probability) of each, the best first."""
        return sorted(
            (-(parent.total + logprob), parent.rank, token_id, place, logprob)
            for place, (parent, continuations) in enumerate(zip(self._live, candidates, strict=True))
            for token_id, logprob in continuations
            if logprob > -inf
        )

    def _score(self, total: float) -> float:
        """What a hypothesis with this sum is worth if it ends in this step."""
        return total / float(self._num_steps**self._params.length_penalty)

    def _is_over(self, going_on: list[_Hypothesis]) -> bool:
        if not going_on:
            return True
        if len(self._finished) < self._num_beams:
            return False
        return self._params.early_stopping or self._score(going_on[0].total) <= self._finished[-1][0]


def _kept_in_place(going_on: list[_Hypothesis], places: dict[int, int]) -> list[_Hypothesis]:
    """Put the first child of each parent where the parent stood; the others fill what is left.

    places: by the rank of a hypothesis, the place of its parent.
    """
    order: list[_Hypothesis | None] = [None] * len(going_on)
    others = []
    for hypothesis in going_on:
        place = places[hypothesis.rank]
        if place < len(order) and order[place] is None:
            order[place] = hypothesis
        else:
            others.append(hypothesis)
    rest = iter(others)
    return [next(rest) if hypothesis is None else hypothesis for hypothesis in order]
