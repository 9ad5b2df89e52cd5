"""`n` and `best_of`: one prompt becomes several requests to the engine, of whose answers the likeliest are given."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.core import Request
from lmi_server.generation.continuation import Completion, GenerationRequest


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What the engine is told of the HTTP request that prompts came in."""

    id: str
    """Made by the server; the ids of the engine's requests begin with it."""
    arrival_time: float
    """`time.monotonic()`."""
    timeout: float | None = None
    """Seconds from the arrival after which the web process gives up; None: the engine alone watches the time."""
    timeout_name: str = "option.predict_timeout"
    """Where the timeout comes from, for an error text."""
    engine_stops: bool = True
    """Whether the engine gives up at that moment too."""
    tenant: str = ""
    priority: int = 0

    @property
    def deadline(self) -> float | None:
        return None if self.timeout is None else self.arrival_time + self.timeout


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer that is generated."""

    request: Request
    prompt: int
    """Which prompt of the call it answers."""


def candidates(http: HttpRequest, requests: Sequence[GenerationRequest]) -> list[Candidate]:
    """For each prompt `best_of` requests, one after the other; the later ones may share the first one's pages."""
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
                # One that reports on its prompt has to compute it.
                same_prompt_as=first if sampling.prompt_logprobs is None else "",
            )
            first = first or one.id
            found.append(Candidate(one, prompt))
    return found


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a prompt's answer number `choice`, the same after every restart; the first has the request's own."""
    if choice == 0:
        return seed
    text = seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def best_completions(
    requests: Sequence[GenerationRequest], completions: Sequence[Completion]
) -> tuple[Completion, ...]:
    """The `n` answers of each prompt, one prompt after the other: all of them as they stand, or, where `best_of` is
    more, those of the highest mean log-probability, the best first.
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
