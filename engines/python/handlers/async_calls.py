"""Calls of an asynchronous handler. They run concurrently, each as a task of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from djl_python import Output

from engines.invocations import AnswerHead, Invocation, InvocationOutput
from engines.python.handlers import answers
from engines.python.handlers.calls import load_input, single_input
from engines.python.handlers.entry import AsyncHandler
from engines.python.handlers.messages import Add, Answered, CallDone, ToWorker
from engines.python.handlers.slot import MAX_CALLS
from engines.python.link import Link, LinkClosed
from engines.python.messages import Forget

logger = logging.getLogger(__name__)


class AsyncCalls:
    """The running calls of one handler, in one event loop."""

    def __init__(self, handler: AsyncHandler, link: Link[ToWorker], properties: Mapping[str, str]) -> None:
        """properties: of the call in which the handler loads its model."""
        self._handler = handler
        self._properties = properties
        self._link = link
        self._runner = asyncio.Runner()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(2 * MAX_CALLS)
        """Threads that wait for pieces of streams: half for running calls, half for canceled ones."""
        self._abandoned: list[Future[bytes | None]] = []
        """Pieces of canceled calls for which threads still waited at the latest cancellation."""
        self._ending = False
        """Whether the process is exiting, so that the dispatcher decides about unfinished calls."""

    def load(self) -> None:
        """Make the call in which the handler loads its model. Raises: any error of the handler; `CannotAnswer`."""
        self._runner.run(self._load())

    def serve(self) -> None:
        """Run calls until the dispatcher exits. Raises `LinkClosed`."""
        with self._runner:
            try:
                self._runner.run(self._serve())
            finally:
                self._ending = True  # before the runner cancels the calls

    async def _load(self) -> None:
        result = await self._handler(load_input(self._properties))
        for output in [each async for each in result] if hasattr(result, "__aiter__") else [result]:
            answers.check_load(output)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                while (message := self._link.receive(0.0)) is not None:
                    self.handle(message)
            except LinkClosed as error:
                if not closed.done():
                    closed.set_exception(error)

        loop.add_reader(self._link.fileno(), read)
        await closed

    def handle(self, message: ToWorker) -> None:
        """Handle a message: start a call, or cancel one."""
        if isinstance(message, Add):
            name = message.invocation.id
            self._tasks[name] = task = asyncio.get_running_loop().create_task(self._run(message.invocation))
            # Not at the end of `_run`, which never runs if the task is canceled before it starts.
            task.add_done_callback(lambda _: self._finish(name))
        elif isinstance(message, Forget) and message.request_id in self._tasks:
            self._tasks[message.request_id].cancel()

    async def _run(self, invocation: Invocation) -> None:
        name = invocation.id
        result = None
        try:
            result = await self._handler(single_input(invocation, self._properties))
            if result is None or (isinstance(result, Output) and result.stream_content is None):
                for piece in answers.response_pieces(name, result):
                    self._deliver(piece)
            else:
                await self._stream(name, self._stream_of(result))
        except Exception as error:  # an error of the user's code must only fail this call
            logger.exception("%s: the handler failed", name)
            self._deliver(answers.failure(name, error))
        answers.finalize(result)  # `_next` does this for a canceled call

    async def _stream(self, name: str, pieces: AsyncIterator[tuple[AnswerHead, bytes]]) -> None:
        """Send a stream. An error before the first piece is raised; a later error ends the stream."""
        head, first = await anext(pieces)
        self._deliver(InvocationOutput(name, head, first))
        try:
            async for _, piece in pieces:
                self._deliver(InvocationOutput(name, body=piece))
        except Exception as error:
            self._deliver(answers.stream_failure(name, error))
            return
        self._deliver(InvocationOutput(name, last=True))

    async def _stream_of(self, result: Any) -> AsyncIterator[tuple[AnswerHead, bytes]]:
        """Yield the head and the data of each piece of a response. There is at least one piece.

        result: an `Output` with a stream, or an asynchronous generator of outputs.
        Raises `answers.CannotAnswer` for anything else.
        """
        if isinstance(result, Output):
            pieces = answers.stream_of(result)
            try:
                piece: bytes | None = await self._next(result, pieces, b"")
                while piece is not None:
                    yield answers.head(result), piece
                    piece = await self._next(result, pieces, None)
            finally:
                with contextlib.suppress(ValueError):  # the thread of a canceled call is still in it
                    pieces.close()
            return
        if not hasattr(result, "__aiter__"):
            raise answers.CannotAnswer(
                f"the handler returned {type(result).__name__}; it must return an Output, None or an asynchronous"
                " generator of Outputs"
            )
        empty = True
        async for output in result:
            if not isinstance(output, Output):
                raise answers.CannotAnswer(
                    f"the handler's generator yielded {type(output).__name__}, not Output"
                )
            yield answers.head(output), answers.body(output)
            empty = False
        if empty:
            yield answers.head(Output(204, "No Content")), b""

    async def _next(self, output: Output, pieces: Iterator[bytes], end: bytes | None) -> bytes | None:
        """Return the next piece of an output's stream, or `end`, from a thread.

        A canceled call leaves its thread behind, unless too many threads of canceled calls wait already. Then the
        call does not end before its thread returns, so that the dispatcher kills a process that has no threads left.
        The output's finalizer runs when the thread has returned, because the stream may use what it releases.
        """
        piece = self._threads.submit(contextvars.copy_context().run, lambda: next(pieces, end))
        try:
            return await asyncio.wrap_future(piece)
        except asyncio.CancelledError:
            asyncio.wrap_future(piece).add_done_callback(lambda _: answers.finalize(output))
            self._abandoned = [each for each in (*self._abandoned, piece) if not each.done()]
            if len(self._abandoned) > MAX_CALLS:
                await asyncio.wait([asyncio.wrap_future(piece)])
            raise

    def _finish(self, name: str) -> None:
        del self._tasks[name]
        self._send(CallDone([name]))

    def _deliver(self, piece: InvocationOutput) -> None:
        self._send(Answered([piece]))

    def _send(self, message: Answered | CallDone) -> None:
        if not self._ending:
            self._link.send(message)
