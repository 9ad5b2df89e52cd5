"""A model without tensors and an engine socket without ZeroMQ, for tests of the scheduler and the leader.

`FakeModel` has a cache of slots, written and read through block tables only. Its next token is a pure function of the
cache contents. So overlapping block tables, positions that are computed twice or never, and blocks that another
sequence has overwritten lead to wrong tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engines.core import FinishReason, Request, RequestOutput, SampledToken, SamplingParams
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import WANT_LOGITS, PlanKind, StepPlan
from engines.wire import Drain, Outputs, ToClient, ToEngine

VOCAB = 32
"""Number of token ids that the model generates."""
NUM_IDS = 256
"""Number of token ids that a prompt may contain."""
CLIENT = b"web process 1"


def next_token(history: Sequence[int], window: int | None = None) -> int:
    """Return the next token: a pure function of all tokens so far, or of the tokens in the window."""
    return zlib.crc32(bytes(history[-(window or len(history)) :])) % VOCAB


def expected_output(request: Request, window: int | None = None) -> tuple[list[int], FinishReason]:
    """Return the expected output of `request`, which does not depend on other requests."""
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
    """Runs plans on a cache of slots, which it addresses through the block tables of the plans."""

    block_size: int
    slots: dict[int, int] = field(default_factory=dict)
    tables: dict[int, dict[int, int]] = field(default_factory=dict)
    """Block table of each row, from index to block."""
    window: int | None = None
    """Number of latest tokens that the model reads; None for all."""

    def run(self, plan: StepPlan) -> list[int]:
        """Run a plan. Return the next token of each sampled sequence, in the order of the plan."""
        if plan.kind is not PlanKind.STEP:
            raise ValueError(f"only steps can be run, not {plan.kind.name}")
        self.apply(plan)
        return self.compute(plan)

    def compute(self, plan: StepPlan) -> list[int]:
        """Compute the step with the current block tables."""
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
        """Apply the copies and block-table updates of the plan."""
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
class ScriptedSocket:
    """Returns the messages of a script, turn by turn, and then a drain message."""

    script: list[list[tuple[bytes, ToEngine]]]
    gone: set[bytes] = field(default_factory=set)
    sent: list[tuple[bytes, ToClient]] = field(default_factory=list)
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)
    owners: dict[str, bytes] = field(default_factory=dict)
    timeouts: list[float] = field(default_factory=list)
    closed: bool = False
    messages: list[list[str]] = field(default_factory=list)
    """Request ids of each message with outputs."""

    def receive(self, timeout: float) -> Iterator[tuple[bytes, ToEngine]]:
        self.timeouts.append(timeout)
        yield from self.script.pop(0) if self.script else [(CLIENT, Drain(60.0))]

    def send(self, client: bytes, message: ToClient) -> bool:
        if isinstance(message, Outputs):
            self.record(client, message.outputs)
        else:
            self.sent.append((client, message))
        return client not in self.gone

    def record(self, client: bytes, outputs: list[RequestOutput]) -> None:
        self.messages.append([output.id for output in outputs])
        for output in outputs:
            assert not any(o.finished for o in self.outputs.get(output.id, [])), (
                "an output after the last one"
            )
            self.outputs.setdefault(output.id, []).append(output)
            self.owners[output.id] = client

    def close(self) -> None:
        self.closed = True

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]
