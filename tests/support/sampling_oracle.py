"""The oracle of sampling steps: transformers' logits processors, applied to one row.

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
from engines.sampling.plan import SamplingPlan
from engines.sampling.sampler import STEPS, LogitsStep
from engines.sampling.typical_p import ban_truncated, typical_p

CLOSE = 1e-5
"""Tolerance of cumulative probabilities near a limit. A different order of summation changes them by less."""
_TRUNCATES = ("top_k", "top_p", "min_p", "typical_p")
_ALONE = SamplingParams(1, temperature=1.0)


def truncate(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Apply top_k, top_p and min_p as a step."""
    plan = SamplingPlan([row.params for row in batch.rows], logits.shape[1], logits.device)
    ban_truncated(logits, plan.sampled, *plan.edges(logits))


def keep_typical(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Apply typical_p as a step."""
    plan = SamplingPlan([row.params for row in batch.rows], logits.shape[1], logits.device)
    if plan.typical:
        typical_p(logits, plan)


ALL_STEPS: tuple[LogitsStep, ...] = (*STEPS, truncate, keep_typical)
"""All steps, including those that apply only to sampled rows."""
_STEPS: dict[str, LogitsStep] = {
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), penalties),
    "logit_bias": logit_bias,
    **dict.fromkeys(("bad_words", "min_new_tokens"), bans),
    "typical_p": keep_typical,
}


class Stage(NamedTuple):
    """One of our steps, and the transformers processor that does the same for one row."""

    name: str
    """Name of the parameter."""
    step: LogitsStep | None
    """None for the temperature: logits are divided by it when they are read, and not changed."""
    row: SamplingRow
    """A row that uses this stage only."""
    processor: Any
    edge: Callable[[torch.Tensor], torch.Tensor]
    """Scores before the step, [vocab_size] -> bool: tokens for which rounding decides whether they stay."""


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
    """Yield the stages that the row uses, in the order of application."""
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
    """Apply a processor to one row. scores: [vocab_size] -> the same shape."""
    processed: torch.Tensor = processor(torch.tensor([list(token_ids)]), scores[None].clone())
    return processed[0]


def processed(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """Apply all processors of a row. logits: [vocab_size] -> the same shape."""
    scores = logits.log_softmax(-1) if row.params.num_beams > 1 else logits
    for stage in stages(row):
        scores = call(stage.processor, scores, row.token_ids)
    return scores


def is_unambiguous(logits: torch.Tensor, row: SamplingRow) -> bool:
    """Whether no stage of the row depends on rounding."""
    scores = logits
    for stage in stages(row):
        if bool(stage.edge(scores).any()):
            return False
        scores = call(stage.processor, scores, row.token_ids)
    return True


def apply(steps: Sequence[LogitsStep], logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Apply our steps to a batch as the sampler does, with new sequence states. `logits` is not modified."""
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


def apply_temperature(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """The logits to draw from: logits / temperature."""
    heat = [row.params.temperature if row.params.sampled else 1.0 for row in rows]
    return logits / torch.tensor(heat)[:, None]


def deviation(ours: torch.Tensor, theirs: torch.Tensor, edge: torch.Tensor) -> float:
    """The largest deviation, relative where logits are above 1. Infinite if the tokens that stay differ.

    Tokens at the edge are ignored. All arguments: [vocab_size].
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
    """Tokens that may stay or go, because of rounding or because of a tie with another token.

    keys: [vocab_size]; tokens with the smallest keys stay. blur: limit of the rounding error of keys.
    """
    probabilities, keys = scores.double().softmax(-1), keys.double()
    order = keys.argsort()
    cumulative = torch.cat([torch.zeros(1, dtype=torch.float64), probabilities[order].cumsum(-1)])
    surely_before = cumulative[torch.searchsorted(keys[order], keys - blur)]
    perhaps_before = cumulative[torch.searchsorted(keys[order], keys + blur, right=True)] - probabilities
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
