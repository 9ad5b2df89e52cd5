"""What transformers' logits processors make of one row: the oracle of sampling steps.

Presence and frequency penalties, which transformers lacks, are computed one token at a time in double precision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from engines.core import SamplingParams
from engines.sampling.adjustments import logit_bias, penalties
from engines.sampling.bans import bans
from engines.sampling.batch import SamplingBatch, SamplingRow, SequenceState
from engines.sampling.draw import find_edges
from engines.sampling.plan import SamplingPlan
from engines.sampling.sampler import STEPS, LogitsStep
from engines.sampling.typical_p import typical_p

CLOSE = 1e-5
"""Tokens whose cumulated probability is this near to a limit may be in or out: two orders of adding differ by less."""
_TRUNCATES = ("top_k", "top_p", "min_p", "typical_p")
_ALONE = SamplingParams(1, temperature=1.0)


def truncate(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """top_k, top_p and min_p as a step."""
    plan = SamplingPlan([row.params for row in batch.rows], logits.shape[1], logits.device)
    find_edges(logits, plan).ban_others(logits, plan.sampled)


ALL_STEPS: tuple[LogitsStep, ...] = (*STEPS, truncate, typical_p)
"""With those that only rows have that are drawn."""
_STEPS: dict[str, LogitsStep] = {
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), penalties),
    "logit_bias": logit_bias,
    **dict.fromkeys(("bad_words", "min_new_tokens"), bans),
    "typical_p": typical_p,
}


class Stage(NamedTuple):
    """One of our steps, and the processor of transformers that does the same for one row."""

    name: str
    """Of the parameter."""
    step: LogitsStep | None
    """None: logits are divided by the temperature where they are looked at, and stay as they are."""
    row: SamplingRow
    """Asks for this stage only."""
    processor: Any
    edge: Callable[[torch.Tensor], torch.Tensor]
    """scores before the step, [vocab_size] -> bool: tokens of which rounding decides whether they stay."""


class _OutputPenalty(LogitsProcessor):
    def __init__(self, output: Sequence[int], amount: Callable[[int], float]) -> None:
        self._counts = Counter(output)
        self._amount = amount

    def __call__(self, input_ids: Any, scores: torch.Tensor) -> torch.Tensor:
        values = scores[0].double().tolist()
        for token, count in self._counts.items():
            values[token] -= self._amount(count)
        return torch.tensor([values], dtype=torch.float64).float()


def stages(row: SamplingRow) -> Iterator[Stage]:
    """Those that the row asks for, in the order in which they are to be applied."""
    p, output = row.params, row.token_ids[row.num_prompt_tokens :]
    stops = list(p.stop_token_ids)
    if p.repetition_penalty != 1.0:
        yield _stage(row, "repetition_penalty", RepetitionPenaltyLogitsProcessor(p.repetition_penalty))
    if p.presence_penalty:
        yield _stage(row, "presence_penalty", _OutputPenalty(output, lambda _: p.presence_penalty))
    if p.frequency_penalty:
        yield _stage(
            row, "frequency_penalty", _OutputPenalty(output, lambda count: p.frequency_penalty * count)
        )
    if p.logit_bias:
        yield _stage(row, "logit_bias", SequenceBiasLogitsProcessor({(i,): bias for i, bias in p.logit_bias}))
    words = [list(word) for word in p.bad_words]
    if any(word not in [[stop] for stop in stops] for word in words):
        yield _stage(row, "bad_words", NoBadWordsLogitsProcessor(words, stops or None))
    if p.min_new_tokens and stops:
        limit = MinNewTokensLengthLogitsProcessor(row.num_prompt_tokens, p.min_new_tokens, stops)
        yield _stage(row, "min_new_tokens", limit)
    if not row.params.sampled:
        return
    if p.temperature != 1.0:
        yield _stage(row, "temperature", TemperatureLogitsWarper(p.temperature))
    if p.top_k:
        yield _stage(row, "top_k", TopKLogitsWarper(p.top_k))
    if p.top_p < 1.0:
        yield _stage(
            row, "top_p", TopPLogitsWarper(p.top_p), lambda scores: _edge_of_mass(scores, -scores, p.top_p)
        )
    if p.min_p > 0.0:
        yield _stage(row, "min_p", MinPLogitsWarper(p.min_p), lambda scores: _edge_of_min_p(scores, p.min_p))
    if p.typical_p < 1.0:
        yield _stage(
            row,
            "typical_p",
            TypicalLogitsWarper(p.typical_p),
            lambda scores: _edge_of_typical(scores, p.typical_p),
        )


def call(processor: Any, scores: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
    """scores: [vocab_size] -> the same."""
    processed: torch.Tensor = processor(torch.tensor([list(token_ids)]), scores[None].clone())
    return processed[0]


def processed(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """One row through all its processors. logits: [vocab_size] -> the same."""
    scores = logits.log_softmax(-1) if row.params.num_beams > 1 else logits
    for stage in stages(row):
        scores = call(stage.processor, scores, row.token_ids)
    return scores


def is_clear(logits: torch.Tensor, row: SamplingRow) -> bool:
    """Whether rounding decides nowhere on the way."""
    scores = logits
    for stage in stages(row):
        if bool(stage.edge(scores).any()):
            return False
        scores = call(stage.processor, scores, row.token_ids)
    return True


def apply(steps: Sequence[LogitsStep], logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Our steps over a batch, as the sampler runs them, without what it keeps. `logits` stays as it is."""
    states: list[SequenceState | None] = []
    for row in rows:
        state = None
        if SequenceState.is_needed(row.params):
            state = SequenceState(row.params, row.num_prompt_tokens, logits.shape[-1])
            state.follow(row.token_ids)
        states.append(state)
    batch = SamplingBatch(rows, states)
    logits = logits.clone()
    for step in steps:
        step(logits, batch)
    return logits


def heated(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """What a draw goes by: logits / temperature."""
    heat = [row.params.temperature if row.params.sampled else 1.0 for row in rows]
    return logits / torch.tensor(heat)[:, None]


def deviation(ours: torch.Tensor, theirs: torch.Tensor, edge: torch.Tensor) -> float:
    """The largest, relative where logits are above 1; infinite where a token stays that should not or goes that should.

    Tokens at the edge are left out. All: [vocab_size].
    """
    ours, theirs = ours[~edge].double(), theirs[~edge].double()
    kept = theirs > -math.inf
    if not torch.equal(ours > -math.inf, kept):
        return math.inf
    differences = (ours[kept] - theirs[kept]).abs() / theirs[kept].abs().clamp(min=1.0)
    return float(differences.max()) if len(differences) else 0.0


def _stage(
    row: SamplingRow, name: str, processor: Any, edge: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Stage:
    nowhere = lambda scores: torch.zeros_like(scores, dtype=torch.bool)  # noqa: E731
    step = _STEPS.get(name, truncate if name in _TRUNCATES else None)
    kept = {each: getattr(row.params, each) for each in (name, "max_new_tokens", "stop_token_ids")}
    row = row._replace(params=replace(_ALONE, **kept))
    return Stage(name, step, row, processor, edge or nowhere)


def _edge_of_mass(scores: torch.Tensor, keys: torch.Tensor, limit: float, blur: float = 0.0) -> torch.Tensor:
    """Tokens that may stay or go: by rounding, or because they have an equal, of which the set holds only one.

    keys: [vocab_size], the smallest stays; `blur` is what their rounding may come to.
    """
    probabilities, keys = scores.double().softmax(-1), keys.double()
    order = keys.argsort()
    cumulated = torch.cat([torch.zeros(1, dtype=torch.float64), probabilities[order].cumsum(-1)])
    surely_before = cumulated[torch.searchsorted(keys[order], keys - blur)]
    perhaps_before = cumulated[torch.searchsorted(keys[order], keys + blur, right=True)] - probabilities
    stays, goes = perhaps_before < limit - CLOSE, surely_before >= limit + CLOSE
    return ~(stays | goes) & (scores > -math.inf)


def _edge_of_typical(scores: torch.Tensor, limit: float) -> torch.Tensor:
    logprobs = scores.double().log_softmax(-1)
    entropy = -(logprobs * logprobs.exp()).nansum()
    return _edge_of_mass(scores, (logprobs + entropy).abs(), limit, blur=CLOSE)


def _edge_of_min_p(scores: torch.Tensor, min_p: float) -> torch.Tensor:
    distances = scores.double() - scores.double().max()
    return (distances - math.log(min_p)).abs() < CLOSE * max(
        1.0, float(scores.abs()[scores.isfinite()].max())
    )
