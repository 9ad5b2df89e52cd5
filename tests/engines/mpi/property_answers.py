"""Random sampling parameters, and the answer that a request gets when it runs alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from engines.core import FinishReason, PromptLogprob, Request, SampledToken, TokenLogprobs
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from tests.engines.mpi.property_model import CPU, POISON, logits_after
from tests.engines.mpi.scheduler.beams_lab import expected_beam_result
from tests.engines.mpi.scheduler.property_requests import VOCAB


@dataclass(slots=True)
class Answer:
    """What the client gets, and how much of it has come."""

    request: Request
    tokens: list[SampledToken]
    reason: FinishReason | None
    """None: an error follows the tokens."""
    prompt_logprobs: list[PromptLogprob]
    num_reported: int = 0


class _NotFinite(Exception):
    """The logits of a hypothesis are not finite."""


def random_request(request: Request, rng: random.Random, longest_search: int) -> Request:
    """Return the request with random sampling parameters, or as a beam search of at most twice `longest_search`
    tokens. Few have a poisoned prompt."""
    sampling = replace(
        request.sampling, stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice((0, 0, 1, 3))))
    )
    if rng.random() < 0.1:
        changes: dict[str, Any] = {
            "max_new_tokens": min(sampling.max_new_tokens, longest_search),
            "num_beams": rng.choice((2, 3)),
            "length_penalty": rng.choice((1.0, 0.5)),
            "early_stopping": rng.random() < 0.3,
            "repetition_penalty": rng.choice((1.0, 1.2)),
            "prompt_logprobs": None,
        }
        prompt = request.prompt_token_ids[:longest_search]
        return replace(
            request, prompt_token_ids=prompt, sampling=replace(sampling, **changes), same_prompt_as=""
        )
    prompt = request.prompt_token_ids
    if rng.random() < 0.02 and not request.same_prompt_as:
        at = rng.randrange(len(prompt))
        prompt = (*prompt[:at], POISON, *prompt[at + 1 :])
    return replace(request, prompt_token_ids=prompt, sampling=replace(sampling, **_random_changes(rng)))


def _random_changes(rng: random.Random) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if rng.random() < 0.5:
        changes |= {
            "temperature": rng.choice((0.5, 1.0, 2.0)),
            "seed": rng.getrandbits(64),
            "top_k": rng.choice((0, 3)),
            "top_p": rng.choice((1.0, 0.8)),
            "min_p": rng.choice((0.0, 0.1)),
        }
    if rng.random() < 0.6:
        changes |= {
            "repetition_penalty": rng.choice((1.0, 1.3)),
            "presence_penalty": rng.choice((0.0, 0.5)),
            "frequency_penalty": rng.choice((0.0, 0.4)),
        }
    # The host samples for the requests with one of the last five.
    for share, change in (
        (0.2, {"logprobs": True}),
        (0.05, {"logprobs": True, "top_logprobs": 2}),
        (0.05, {"logit_bias": ((3, 0.7),)}),
        (0.05, {"bad_words": ((2,), (4, 5))}),
        (0.05, {"min_new_tokens": 3}),
        (0.05, {"prompt_logprobs": 2}),
    ):
        if rng.random() < share:
            changes |= change
    return changes


def expected_answer(request: Request, window: int | None) -> Answer:
    """Return the answer that a lone request gets."""
    sampling, tokens = request.sampling, list(request.prompt_token_ids)
    answer = Answer(request, [], None, [])
    if POISON in tokens:
        return answer
    sampler = Sampler(VOCAB, CPU)
    if sampling.num_beams > 1:
        return _beam_answer(answer, sampler, window)
    if sampling.prompt_logprobs is not None:
        answer.prompt_logprobs = _prompt_logprobs(tokens, sampling.prompt_logprobs, window)
    row = SamplingRow(request.id, sampling, tokens, len(tokens))
    while answer.reason is None:
        (token,) = sampler.sample(logits_after(tokens, window), [row])
        if not token.finite:
            break
        answer.tokens.append(token)
        tokens.append(token.token_id)
        if token.token_id in sampling.stop_token_ids:
            answer.reason = FinishReason.EOS_TOKEN
        elif len(answer.tokens) == sampling.max_new_tokens:
            answer.reason = FinishReason.LENGTH
    return answer


def _beam_answer(answer: Answer, sampler: Sampler, window: int | None) -> Answer:
    request = answer.request

    def candidates(tokens: tuple[int, ...]) -> TokenLogprobs:
        row = SamplingRow(request.id, request.sampling, tokens, len(request.prompt_token_ids))
        (token,) = sampler.sample(logits_after(tokens, window), [row])
        if not token.finite:
            raise _NotFinite
        return token.top

    try:
        best = expected_beam_result(request, candidates)
    except _NotFinite:
        return answer
    answer.tokens = [SampledToken(token) for token in best.token_ids]
    answer.reason = best.finish_reason
    return answer


def _prompt_logprobs(prompt: list[int], num_top: int, window: int | None) -> list[PromptLogprob]:
    found = []
    for stop in range(1, len(prompt)):
        logprobs = logits_after(prompt[:stop], window)[0].log_softmax(dim=-1)
        values, ids = logprobs.topk(num_top)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        found.append(PromptLogprob(float(logprobs[prompt[stop]]), top))
    return found
