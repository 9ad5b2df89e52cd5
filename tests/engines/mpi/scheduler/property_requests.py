"""Random requests for the property tests, with the expected result of each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from zlib import crc32

from engines.core import FinishReason, Request, SamplingParams
from engines.mpi.scheduler.sequence import Sequence

VOCAB = 32
CELL_BYTES = 4
NEVER = 1 << 30
TENANTS = ("a", "b", "c")
_SHORT = 1 << 24
"""Upper limit of cell values. The last byte of a cell is 0, so adjacent cells never look like poison."""


@dataclass(slots=True, eq=False)
class Subject:
    """A request, its expected result, and its progress so far. Modified by the episode that serves it."""

    request: Request
    order: int
    """Position in the order of arrival."""
    tokens: list[int]
    """The prompt, then the expected output."""
    reason: FinishReason
    cells: bytes
    """Expected contents of its slots: one number per position, from the tenant and all tokens up to there."""
    non_finite_from: int = NEVER
    """First position whose values are not finite."""
    fails_from: int = NEVER
    """A step that computes this position or a later one fails."""

    sequence: Sequence | None = None
    """Set when the sequence has started."""
    num_reported: int = 0
    """Output tokens that the client has received."""
    num_ever_computed: int = 0
    waits_since: tuple[int, ...] = ()
    """Service of each tenant when this request began to wait."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def runs(self) -> bool:
        return self.sequence is not None and not self.sequence.is_waiting

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return self.num_prompt_tokens + self.num_reported


@dataclass(slots=True)
class Workload:
    """Creates requests with shared prefixes, siblings, stop tokens and deadlines, and subjects with faults."""

    rng: random.Random
    limit: int
    """Maximum number of tokens of a prompt and its output."""
    longest_output: int
    siblings: bool
    prefixes: list[list[int]] = field(init=False)
    num_made: int = 0

    def __post_init__(self) -> None:
        self.prefixes = [[self.rng.randrange(VOCAB) for _ in range(self.limit)] for _ in range(3)]

    def make(self, now: float, live: dict[str, Subject]) -> Subject:
        rng = self.rng
        request = self.make_request(now, [subject.request for subject in live.values()])
        subject = _make_subject(request, self.num_made)
        if rng.random() < 0.06:
            position = rng.randrange(len(subject.tokens))
            if rng.random() < 0.5:
                subject.non_finite_from = position
            else:
                subject.fails_from = position
        return subject

    def make_request(self, now: float, live: list[Request]) -> Request:
        rng = self.rng
        sibling = rng.choice(live) if live and self.siblings and rng.random() < 0.15 else None
        if sibling is not None:
            prompt = list(sibling.prompt_token_ids)
            tenant = sibling.tenant
        else:
            tenant = TENANTS[int(rng.random() * rng.random() * 3)]
            length = 1 + int((self.limit - 1) * rng.random() * rng.random())
            shared = int(length * rng.random() * 1.5)
            prompt = (
                rng.choice(self.prefixes)[:shared] + [rng.randrange(VOCAB) for _ in range(length - shared)]
            )[:length]
        room = min(self.longest_output, self.limit - len(prompt))
        sampling = SamplingParams(
            1 + int(room * rng.random()),
            stop_token_ids=(rng.randrange(VOCAB),) if rng.random() < 0.3 else (),
            prompt_logprobs=0 if rng.random() < 0.05 else None,
        )
        self.num_made += 1
        return Request(
            f"r{self.num_made}",
            tuple(prompt),
            sampling,
            now,
            deadline=now + rng.randint(1, 60) if rng.random() < 0.05 else None,
            priority=rng.randint(-1, 2),
            tenant=tenant,
            same_prompt_as=sibling.id if sibling is not None else "",
        )


def _make_subject(request: Request, order: int) -> Subject:
    """Compute the expected result. Siblings have different outputs: one that reads the output of another fails."""
    value = crc32(request.tenant.encode())
    salt = crc32(request.id.encode())
    cells = []
    for token in request.prompt_token_ids:
        value = crc32(bytes((token,)), value) % _SHORT
        cells.append(value)
    tokens = list(request.prompt_token_ids)
    reason = FinishReason.LENGTH
    for _ in range(request.sampling.max_new_tokens):
        tokens.append((value ^ salt) % VOCAB)
        value = crc32(bytes((tokens[-1],)), value) % _SHORT
        cells.append(value)
        if tokens[-1] in request.sampling.stop_token_ids:
            reason = FinishReason.EOS_TOKEN
            break
    data = b"".join([cell.to_bytes(CELL_BYTES, "little") for cell in cells])
    return Subject(request, order, tokens, reason, data)
