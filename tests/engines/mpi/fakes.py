"""A model without tensors and a front without sockets, for tests of the scheduler and the leader.

`FakeModel` has a cache of slots, written and read through block tables only. Its next token is a pure function of
what it finds there, so a table that overlaps another one, a position computed twice or never, or a block that
somebody else wrote to gives wrong tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engines.core import FinishReason, Request, RequestOutput, SampledToken, SamplingParams
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import WANT_LOGITS, PlanKind, StepPlan
from engines.wire import Drain, ToClient, ToEngine

VOCAB = 32
"""Ids that the model makes."""
NUM_IDS = 256
"""Ids that a prompt may hold."""
CLIENT = b"web process 1"


def next_token(history: Sequence[int], window: int | None = None) -> int:
    """The model: a pure function of all tokens so far, or of those in the window."""
    return zlib.crc32(bytes(history[-(window or len(history)) :])) % VOCAB


def continue_alone(request: Request, window: int | None = None) -> tuple[list[int], FinishReason]:
    """What `request` must come to, whoever shares its steps."""
    history = list(request.prompt_token_ids)
    output: list[int] = []
    while True:
        output.append(next_token(history, window))
        history.append(output[-1])
        if output[-1] in request.sampling.stop_token_ids:
            return output, FinishReason.EOS_TOKEN
        if len(output) == request.sampling.max_new_tokens:
            return output, FinishReason.LENGTH


def make_request(
    id: str,  # noqa: A002
    prompt: Sequence[int] = (1, 2, 3),
    max_new_tokens: int = 4,
    stop: Sequence[int] = (),
    arrival_time: float = 0.0,
) -> Request:
    sampling = SamplingParams(max_new_tokens=max_new_tokens, stop_token_ids=tuple(stop))
    return Request(id, tuple(prompt), sampling, arrival_time)


@dataclass
class FakeModel:
    """Runs plans on a cache of `num_blocks * block_size` slots, which it finds by the tables that plans tell of."""

    block_size: int
    slots: dict[int, int] = field(default_factory=dict)
    tables: dict[int, dict[int, int]] = field(default_factory=dict)
    """By row: index -> block."""
    window: int | None = None
    """Latest tokens that it reads; None: all."""

    def run(self, plan: StepPlan) -> list[int]:
        """The next token of each sampling sequence, in the plan's order."""
        if plan.kind is not PlanKind.STEP:
            raise ValueError(f"only steps can be run, not {plan.kind.name}")
        self.apply(plan)
        return self.compute(plan)

    def compute(self, plan: StepPlan) -> list[int]:
        """The step itself, on tables that are up to date."""
        token_ids = iter(plan.token_ids)
        for row, start, count in zip(plan.rows, plan.starts, plan.query_lens, strict=True):
            for position in range(start, start + count):
                self.slots[self._slot(row, position)] = next(token_ids)
        return [
            next_token([self.slots[self._slot(row, position)] for position in self._seen(start + count)])
            for row, start, count, want in zip(
                plan.rows, plan.starts, plan.query_lens, plan.wants, strict=True
            )
            if want & WANT_LOGITS
        ]

    def _seen(self, stop: int) -> range:
        return range(0 if self.window is None else max(0, stop - self.window), stop)

    def apply(self, plan: StepPlan) -> None:
        """What the plan changes before its tokens are computed."""
        for source, destination in zip(plan.copies[::2], plan.copies[1::2], strict=True):
            for slot, other in zip(self._slots_of(source), self._slots_of(destination), strict=True):
                self.slots.pop(other, None)
                if slot in self.slots:
                    self.slots[other] = self.slots[slot]
        updates = list(plan.table_updates)
        while updates:
            row, first, count = updates[:3]
            self.tables.setdefault(row, {}).update(enumerate(updates[3 : 3 + count], first))
            del updates[: 3 + count]

    def _slots_of(self, block: int) -> range:
        return range(block * self.block_size, (block + 1) * self.block_size)

    def _slot(self, row: int, position: int) -> int:
        return self.tables[row][position // self.block_size] * self.block_size + position % self.block_size

    def sample(self, step: Step) -> list[SampledToken]:
        return [SampledToken(token) for token in self.run(step.plan)]


@dataclass
class ScriptedFront:
    """Plays a script: the messages of each turn of the loop. When it is over, drains."""

    script: list[list[tuple[bytes, ToEngine]]]
    gone: set[bytes] = field(default_factory=set)
    sent: list[tuple[bytes, ToClient]] = field(default_factory=list)
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)
    owners: dict[str, bytes] = field(default_factory=dict)
    timeouts: list[float] = field(default_factory=list)
    closed: bool = False
    messages: list[list[str]] = field(default_factory=list)
    """Of each message with outputs, whose they are."""

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        self.timeouts.append(timeout)
        yield from self.script.pop(0) if self.script else [(CLIENT, Drain(60.0))]

    def send(self, client: bytes, message: ToClient) -> bool:
        self.sent.append((client, message))
        return client not in self.gone

    def send_outputs(self, client: bytes, outputs: list[RequestOutput]) -> bool:
        self.messages.append([output.id for output in outputs])
        for output in outputs:
            assert not any(o.finished for o in self.outputs.get(output.id, [])), "an output after the end"
            self.outputs.setdefault(output.id, []).append(output)
            self.owners[output.id] = client
        return client not in self.gone

    def close(self) -> None:
        self.closed = True

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]
