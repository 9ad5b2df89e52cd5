"""engine=Python in virtual time: the dispatcher's real loop and batcher, with a process that computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from container.measure.simulate.clients import VirtualSocket
from container.measure.simulate.clock import VirtualClock
from container.measure.simulate.server import SimulatedServer
from container.measure.simulate.step_times import StepTimes
from engines.config import PythonEngineConfig
from engines.core import FinishReason, Request, RequestOutput
from engines.health import StatusBoard
from engines.python.batcher import DynamicBatcher
from engines.python.dispatch import Dispatch
from engines.python.generating_process import GeneratingProcess
from engines.python.messages import BatchDone, BatchWaste, FromGenerator, StepDone
from engines.python.running import batch_timed_out

_TOKEN = 0


class VirtualGenerator(GeneratingProcess):
    """The generating process in virtual time: `generate` on prompts that are padded to the longest.

    Rows that have ended or were aborted are still computed until the batch ends. on_gpu: whether the device computes
    while the host launches the rest of a step.
    """

    def __init__(self, clock: VirtualClock, times: StepTimes, batch_timeout: float, on_gpu: bool) -> None:
        self.ready = math.inf
        """Time at which the current step ends."""
        self._clock = clock
        self._times = times
        self._batch_timeout = batch_timeout
        self._on_gpu = on_gpu
        self._rows: dict[str, Request] = {}
        """Rows that have not ended."""
        self._size = self._width = self._num_steps = self._padding = self._ended_tokens = 0
        self._deadline = math.inf

    def next_event(self) -> float:
        return self.ready

    def run(self, requests: list[Request]) -> None:
        lengths = [len(request.prompt_token_ids) for request in requests]
        self._rows = {request.id: request for request in requests}
        self._size, self._width, self._num_steps = len(requests), max(lengths), 0
        self._padding = self._size * self._width - sum(lengths)
        self._ended_tokens = 0
        self._deadline = self._clock.now + self._batch_timeout
        self._start_step([0] * self._size, [self._width] * self._size)

    def forget(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def receive(self, timeout: float) -> Iterator[FromGenerator]:
        """Yield the results of steps that have ended."""
        while self.ready <= self._clock.now:
            yield from self._finish_step()

    def fileno(self) -> int:
        return 0

    def _start_step(self, starts: list[int], counts: list[int]) -> None:
        now = self._clock.now
        parts = self._times.seconds(starts, counts, self._size)
        seconds = max(parts) if self._on_gpu else sum(parts)
        self.ready = min(now + seconds, max(now, self._deadline))

    def _finish_step(self) -> Iterator[FromGenerator]:
        self._num_steps += 1
        self._ended_tokens += self._size - len(self._rows)
        outputs = [self._output(request) for request in self._rows.values()]
        if self._clock.now >= self._deadline:
            error = batch_timed_out(self._batch_timeout, self._num_steps)
            outputs = [RequestOutput.failed(row, error) for row in self._rows]
        for output in outputs:
            if output.finished:
                del self._rows[output.id]
        if outputs:
            yield StepDone(outputs)
        if self._rows:
            self._start_step([self._width + self._num_steps - 1] * self._size, [1] * self._size)
        else:
            self.ready = math.inf
            yield BatchDone(BatchWaste(self._padding, self._ended_tokens))

    def _output(self, request: Request) -> RequestOutput:
        ended = self._num_steps == request.sampling.max_new_tokens
        return RequestOutput(request.id, (_TOKEN,), finish_reason=FinishReason.LENGTH if ended else None)


def serve(
    server: SimulatedServer,
    engine: PythonEngineConfig,
    times: StepTimes,
    clock: VirtualClock,
    socket: VirtualSocket,
    folder: Path,
) -> None:
    """Serve the clients of `socket` until all requests have ended.

    engine: of `server`. folder: an empty folder for the status board.
    """
    batching = engine.batching
    generator = VirtualGenerator(clock, times, batching.batch_timeout, engine.parallel.device == "cuda")
    socket.next_event = generator.next_event
    board = StatusBoard.create(folder / "status", 2)
    batcher: DynamicBatcher[Request] = DynamicBatcher(batching)
    Dispatch(engine, server.info, batcher, generator, socket, board, 0.0, clock).serve()
    board.close()
