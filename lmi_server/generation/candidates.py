"""`n` and `best_of`: one prompt becomes several requests to the engine; the likeliest answers are returned."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.core import Request
from lmi_server.generation.answer_text import Completion, GenerationRequest


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The HTTP request that prompts belong to, as far as the engine needs it."""

    id: str
    """Made by the server; the ids of the engine's requests begin with it."""
    arrival_time: float
    """`time.monotonic()`."""
    timeout: float | None = None
    """Seconds from the arrival after which the web process gives up; None: the engine alone watches the time."""
    timeout_name: str = "option.predict_timeout"
    """The option or field that sets it, for an error text."""
    engine_stops: bool = True
    """Whether the engine gives up at that moment too."""
    tenant: str = ""
    priority: int = 0

    @property
    def deadline(self) -> float | None:
        return None if self.timeout is None else self.arrival_time + self.timeout


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer to be generated."""

    request: Request
    prompt: int
    """The number of the prompt that it answers."""


def candidates(http: HttpRequest, requests: Sequence[GenerationRequest]) -> list[Candidate]:
    """Make `best_of` requests for each prompt, in order; the later ones may share the first one's pages."""
    if len(requests) == 1 and requests[0].best_of == 1:
        ids: Iterator[str] = iter((http.id,))
    else:
        ids = (f"{http.id}-{number}" for number in range(sum(request.best_of for request in requests)))
    deadline = http.deadline if http.engine_stops else None
    found: list[Candidate] = []
    for prompt, request in enumerate(requests):
        first = ""
        for choice in range(request.best_of):
            sampling = dataclasses.replace(request.sampling, seed=choice_seed(request.sampling.seed, choice))
            one = Request(
                next(ids),
                request.prompt_token_ids,
                sampling,
                http.arrival_time,
                deadline=deadline,
                priority=http.priority,
                tenant=http.tenant,
                # A request that reports on its prompt has to compute it.
                same_prompt_as=first if sampling.prompt_logprobs is None else "",
            )
            first = first or one.id
            found.append(Candidate(one, prompt))
    return found


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of a prompt's answer number `choice`, the same after a restart; the first has the request's."""
    if choice == 0:
        return seed
    text = seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def best_completions(
    requests: Sequence[GenerationRequest], completions: Sequence[Completion]
) -> tuple[Completion, ...]:
    """Return the `n` best answers of each prompt, in the order of prompts.

    Where `best_of` is more than `n`, those of the highest mean log-probability, the best first.
    """
    found: list[Completion] = []
    start = 0
    for request in requests:
        own = list(completions[start : start + request.best_of])
        start += request.best_of
        if request.best_of > request.n:
            own.sort(key=lambda completion: completion.mean_logprob, reverse=True)
        found += own[: request.n]
    return tuple(found)
