"""Messages between the dispatcher and the generating process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from multiprocessing.connection import Pipe

import msgspec
import pytest

from engines.core import Request, RequestOutput, SamplingParams
from engines.python.link import Link, LinkClosed, Outbox
from engines.python.messages import BatchDone, BatchWaste, Forget, FromGenerator, Run, StepDone, ToGenerator

Ends = tuple[Link[FromGenerator], Link[ToGenerator]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = Pipe()
    both = (
        Link(ours, msgspec.msgpack.Decoder(FromGenerator)),
        Link(theirs, msgspec.msgpack.Decoder(ToGenerator)),
    )
    yield both
    for end in both:
        end.close()


def test_messages_arrive_in_order_and_unchanged(ends: Ends) -> None:
    dispatcher, generator = ends
    sampling = SamplingParams(max_new_tokens=5, temperature=0.5, stop_token_ids=(1, 2), seed=2**64 - 1)
    run = Run([Request("a", (1, 2, 3), sampling, 12.5)])
    dispatcher.send(run)
    dispatcher.send(Forget("a"))
    assert generator.receive(1.0) == run
    assert generator.receive(0.0) == Forget("a")
    assert generator.receive(0.0) is None
    done = StepDone([RequestOutput("a", (7,), (-0.5,))])
    generator.send(done)
    generator.send(BatchDone(BatchWaste(1, 2)))
    assert [dispatcher.receive(1.0), dispatcher.receive(0.0)] == [done, BatchDone(BatchWaste(1, 2))]


def _large_run() -> Run:
    return Run([Request("a", tuple(range(300_000)), SamplingParams(max_new_tokens=1), 0.0)])


def test_a_large_message_does_not_block_the_sender(ends: Ends) -> None:
    dispatcher, generator = ends
    outbox = Outbox(dispatcher)
    outbox.put(_large_run())
    outbox.put(Forget("a"))
    assert [generator.receive(60.0), generator.receive(60.0)] == [_large_run(), Forget("a")]
    outbox.close()


def test_the_outbox_stops_when_the_receiver_closes_without_reading(ends: Ends) -> None:
    dispatcher, generator = ends
    outbox = Outbox(dispatcher)
    outbox.put(_large_run())
    generator.close()
    outbox.close()


def test_messages_sent_before_a_close_are_received(ends: Ends) -> None:
    dispatcher, generator = ends
    generator.send(BatchDone(BatchWaste()))
    generator.send(BatchDone(BatchWaste(1, 1)))
    generator.close()
    assert dispatcher.receive(1.0) == BatchDone(BatchWaste())
    assert dispatcher.receive(1.0) == BatchDone(BatchWaste(1, 1))
    for _ in range(2):
        with pytest.raises(LinkClosed):
            dispatcher.receive(1.0)
    dispatcher.send(Forget("a"))  # has no receiver, and raises no error


_WRONG_TYPE = msgspec.msgpack.encode(StepDone([RequestOutput("a", ("text",))]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!i", len(_WRONG_TYPE)) + _WRONG_TYPE,
        struct.pack("!i", 1) + b"\xc1",
        struct.pack("!i", 2**31 - 1),
    ],
    ids=["wrong type", "not msgpack", "huge length"],
)
def test_a_message_that_is_not_valid_is_handled_as_a_closed_link(ends: Ends, data: bytes) -> None:
    dispatcher, generator = ends
    os.write(generator.fileno(), data)
    with pytest.raises(LinkClosed):
        dispatcher.receive(1.0)
