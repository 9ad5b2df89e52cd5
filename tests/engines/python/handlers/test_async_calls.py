"""The calls of an asynchronous handler in this process, as its worker runs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe

import msgspec
import pytest
from djl_python import Input, Output

from engines.invocations import Invocation
from engines.python.handlers import async_calls
from engines.python.handlers.async_calls import AsyncCalls
from engines.python.handlers.entry import AsyncHandler
from engines.python.handlers.messages import Add, CallDone, FromWorker, ToWorker
from engines.python.link import Link, LinkClosed
from engines.python.messages import Forget


def test_a_cancelled_stream_ends_only_with_its_thread_if_too_many_threads_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_calls, "MAX_CALLS", 1)
    blocked, released = threading.Semaphore(0), threading.Event()

    def pieces() -> Iterator[bytes]:
        blocked.release()
        released.wait(200.0)
        yield b"late"

    def handle(inputs: Input) -> Output | None:
        return Output().add_stream_content(pieces(), None) if inputs.get_property("blocks") else None

    ours, theirs = Pipe()
    dispatcher: Link[FromWorker] = Link(ours, msgspec.msgpack.Decoder(FromWorker))
    worker: Link[ToWorker] = Link(theirs, msgspec.msgpack.Decoder(ToWorker))

    def call(name: str, **properties: str) -> None:
        dispatcher.send(Add(Invocation(name, 0.0, properties, (("data", b""),))))

    def cancel_in_its_thread(name: str) -> None:
        call(name, blocks="yes")
        blocked.acquire()
        dispatcher.send(Forget(name))

    def ended() -> list[str]:
        while not isinstance(message := dispatcher.receive(200.0), CallDone):
            assert message is not None
        return message.request_ids

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(AsyncCalls(AsyncHandler(handle), worker, {}).serve)
        try:
            cancel_in_its_thread("a")
            assert ended() == ["a"]
            cancel_in_its_thread("b")
            for name in "cd":
                call(name)
                assert ended() == [name]
            released.set()
            assert ended() == ["b"]
        finally:
            released.set()
            dispatcher.close()
        with pytest.raises(LinkClosed):
            serving.result()
    worker.close()
