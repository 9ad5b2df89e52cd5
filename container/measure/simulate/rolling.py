"""engine=MPI in virtual time: rank 0's real loop, scheduler and cache, with steps that compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from container.measure.simulate.clients import VirtualSocket
from container.measure.simulate.clock import VirtualClock
from container.measure.simulate.server import SimulatedServer
from container.measure.simulate.step_times import StepTimes
from engines.config import MpiEngineConfig
from engines.core import SampledToken
from engines.health import StatusBoard
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.engine_core import EngineCore
from engines.mpi.leader import Leader
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step_plan import StepPlan
from engines.mpi.trace import StepTrace
from engines.parallel import Communicator
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch

_TOKEN = SampledToken(0)


class VirtualTokens:
    """Tokens of a step, available when the device has finished the step."""

    def __init__(self, clock: VirtualClock, ready: float, count: int, at_once: bool) -> None:
        self.host_rows: Sequence[int] = range(count) if at_once else ()
        """Rows sampled on the host, which waits for the step: all rows if nothing runs ahead, else none."""
        self._clock = clock
        self._ready = ready
        self._count = count

    def wait(self) -> list[SampledToken]:
        self._clock.advance_to(self._ready)
        return [_TOKEN] * self._count


class VirtualSteps:
    """A `StepRunner` whose steps take their predicted time and return placeholder tokens.

    runs_ahead: as on a GPU, the host plans the next step while a step is computed.
    """

    def __init__(self, clock: VirtualClock, times: StepTimes, runs_ahead: bool) -> None:
        self._clock = clock
        self._times = times
        self._runs_ahead = runs_ahead
        self._device_free = -math.inf
        """Time at which the device finishes all launched steps."""

    def update(self, plan: StepPlan) -> None:
        """Do nothing: there are no block tables."""

    def prepare(self, plan: StepPlan) -> StepPlan:
        return plan

    def compute(
        self, batch: StepPlan, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        clock, count = self._clock, len(rows)
        host, device = self._times.seconds(batch.starts, batch.query_lens, count)
        clock.now += host
        self._device_free = done = max(clock.now, self._device_free) + device
        if not self._runs_ahead:
            clock.now = done
        return StepResult(
            pending_tokens=VirtualTokens(clock, done, count, not self._runs_ahead) if count else None
        )


def serve(
    server: SimulatedServer,
    engine: MpiEngineConfig,
    times: StepTimes,
    clock: VirtualClock,
    socket: VirtualSocket,
    folder: Path,
    step_trace: str = "",
) -> None:
    """Serve the clients of `socket` until all requests have ended.

    engine: of `server`. folder: an empty folder for the status board. step_trace: as `option.step_trace`.
    """
    cache, model, max_len = engine.cache, server.model, engine.model.max_model_len
    largest = LargestStep.of(engine.scheduler.settings, max_len)
    window = Window.of(model.window, largest.num_tokens)
    blocks = make_block_manager(
        server.num_blocks, cache.block_size, cache.paged, cache.prefix_caching, window
    )
    scheduler = Scheduler(engine.scheduler, blocks, max_len, model.vocab_size)
    stopwatch = Stopwatch(clock)
    board = StatusBoard.create(folder / "status", 1)
    steps = VirtualSteps(clock, times, runs_ahead=engine.parallel.device == "cuda")
    executor = StepExecutor(steps, Communicator(), board, stopwatch)
    sampler = Sampler(model.vocab_size, torch.device("cpu"))
    trace = StepTrace(step_trace)
    core = EngineCore(scheduler, blocks, executor, sampler, stopwatch, trace, largest, clock)
    Leader(core, server.info, socket, board, stopwatch, clock).serve()
    board.close()
