"""`n` and `best_of`: one prompt becomes several engine requests, and the most likely completions are returned."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.core import Request
from lmi_server.generation.answer_text import Completion, GenerationRequest
from lmi_server.generation.time_limit import TimeLimit


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The properties of an HTTP request that the engine needs."""

    id: str
    """Created by the server. The ids of the engine's requests start with this id."""
    arrival_time: float
    """`time.monotonic()` at the arrival."""
    limit: TimeLimit | None = None
    """The limit that the web process enforces; None if only the engine enforces one."""
    engine_enforces_deadline: bool = True
    """Whether the engine enforces `limit` too."""
    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One completion to generate."""

    request: Request
    prompt: int
    """Index of the prompt within the HTTP request."""


def candidates(http: HttpRequest, requests: Sequence[GenerationRequest]) -> list[Candidate]:
    """Return `best_of` engine requests for each prompt, in order. The first one reports the prompt's log-probabilities,
    if requested. Later ones may share its pages."""
    if len(requests) == 1 and requests[0].best_of == 1:
        ids: Iterator[str] = iter((http.id,))
    else:
        ids = (f"{http.id}-{number}" for number in range(sum(request.best_of for request in requests)))
    deadline = http.limit.deadline if http.limit is not None and http.engine_enforces_deadline else None
    found: list[Candidate] = []
    for prompt, request in enumerate(requests):
        first = ""
        for choice in range(request.best_of):
            sampling = dataclasses.replace(
                request.sampling,
                seed=choice_seed(request.sampling.seed, choice),
                # A request that reports them has to compute the whole prompt. One report is enough.
                prompt_logprobs=None if first else request.sampling.prompt_logprobs,
            )
            one = Request(
                next(ids),
                request.prompt_token_ids,
                sampling,
                http.arrival_time,
                deadline=deadline,
                priority=http.priority,
                tenant=http.tenant,
                same_prompt_as=first,
            )
            first = first or one.id
            found.append(Candidate(one, prompt))
    return found


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of completion number `choice`. The first one uses `seed` itself. Stable across restarts."""
    if choice == 0:
        return seed
    text = seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def best_completions(
    requests: Sequence[GenerationRequest], completions: Sequence[Completion]
) -> tuple[Completion, ...]:
    """Return the `n` best completions of each prompt, in the order of the prompts.

    For ranked requests, these are the ones with the highest mean log-probability, best first.
    """
    found: list[Completion] = []
    start = 0
    for request in requests:
        prompt_completions = list(completions[start : start + request.best_of])
        start += request.best_of
        if request.ranked:
            prompt_completions.sort(key=lambda completion: completion.mean_logprob, reverse=True)
        found += prompt_completions[: request.n]
    return tuple(found)
