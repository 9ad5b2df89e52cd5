"""The calls of an asynchronous handler in this process, as its worker runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Pipe
from typing import Self

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


class AsyncLine:
    """The calls of a handler in another thread, and the dispatcher's end of their link. Use it in `with`."""

    def __init__(self, handle: Callable[[Input], Output | None]) -> None:
        ours, theirs = Pipe()
        self._dispatcher: Link[FromWorker] = Link(ours, msgspec.msgpack.Decoder(FromWorker))
        self._worker: Link[ToWorker] = Link(theirs, msgspec.msgpack.Decoder(ToWorker))
        self._calls = AsyncCalls(AsyncHandler(handle), self._worker, {})
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._serving = self._pool.submit(self._calls.serve)
        return self

    def __exit__(self, *error: object) -> None:
        self._dispatcher.close()
        with self._pool, pytest.raises(LinkClosed):
            self._serving.result()
        self._worker.close()

    def call(self, name: str, **properties: str) -> None:
        self._dispatcher.send(Add(Invocation(name, 0.0, properties, (("data", b""),))))

    def cancel(self, name: str) -> None:
        self._dispatcher.send(Forget(name))

    def ended(self) -> list[str]:
        """Wait for the end of a call. Return the ids of its requests."""
        while not isinstance(message := self._dispatcher.receive(200.0), CallDone):
            assert message is not None
        return message.request_ids


class BlockingStream:
    """A stream that waits in its first piece."""

    def __init__(self) -> None:
        self.blocked, self.released = threading.Semaphore(0), threading.Event()

    def pieces(self) -> Iterator[bytes]:
        self.blocked.release()
        self.released.wait(200.0)
        yield b"late"


@pytest.fixture
def stream() -> Iterator[BlockingStream]:
    stream = BlockingStream()
    yield stream
    stream.released.set()


def test_a_canceled_stream_ends_only_with_its_thread_if_too_many_threads_are_left(
    monkeypatch: pytest.MonkeyPatch, stream: BlockingStream
) -> None:
    monkeypatch.setattr(async_calls, "MAX_CALLS", 1)

    def handle(inputs: Input) -> Output | None:
        return Output().add_stream_content(stream.pieces(), None) if inputs.get_property("blocks") else None

    with AsyncLine(handle) as line:

        def cancel_in_its_thread(name: str) -> None:
            line.call(name, blocks="yes")
            stream.blocked.acquire()
            line.cancel(name)

        cancel_in_its_thread("a")
        assert line.ended() == ["a"]
        cancel_in_its_thread("b")
        for name in "cd":
            line.call(name)
            assert line.ended() == [name]
        stream.released.set()
        assert line.ended() == ["b"]


@pytest.mark.parametrize(
    "output",
    [Output, lambda: Output(code=9), lambda: Output().add_stream_content(map(int, "x"), None)],
)
def test_a_finalizer_runs_once_whether_or_not_the_output_can_be_sent(output: Callable[[], Output]) -> None:
    finished: list[str] = []
    with AsyncLine(lambda inputs: output().finalize(finished.append, "n")) as line:
        line.call("a")
        assert line.ended() == ["a"]
    assert finished == ["n"]


def test_the_finalizer_of_a_canceled_stream_runs_once_its_thread_has_returned(
    stream: BlockingStream,
) -> None:
    finished: list[bool] = []
    done = threading.Event()

    def finish() -> None:
        finished.append(stream.released.is_set())
        done.set()

    with AsyncLine(
        lambda inputs: Output().add_stream_content(stream.pieces(), None).finalize(finish)
    ) as line:
        line.call("a")
        stream.blocked.acquire()
        line.cancel("a")
        assert line.ended() == ["a"]
        stream.released.set()
        assert done.wait(200.0)
    assert finished == [True]
