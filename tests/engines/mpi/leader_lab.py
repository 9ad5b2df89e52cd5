"""The loop of rank 0 with a fake model, for tests."""

from __future__ import annotations

import time
from collections import abc
from pathlib import Path
from typing import Any

from engines.config import SchedulerConfig
from engines.core import EngineInfo, EngineStats, Request, SampledToken, SchedulerSettings
from engines.health import StatusBoard
from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.leader import Leader
from engines.mpi.runner.executor import StepFailed
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.step_plan import PlanKind, StepPlan
from engines.mpi.trace import StepTrace
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch
from engines.wire import Reply, Submit, ToEngine
from tests.engines.mpi.fakes import CLIENT, NUM_IDS, VOCAB, FakeModel, ScriptedSocket, expected_output

POISON = VOCAB
"""A prompt token that makes the model fail. The model never generates it."""
INFO = EngineInfo("m", "MPI", 1, "cpu", "fp32", 256, 256, 4, 4, 64, True)
TWO = b"web process 2"


class Executor:
    """Runs plans on the fake model. Steps that contain the poison token fail."""

    def __init__(self) -> None:
        self.model = FakeModel(4)
        self.kinds: list[PlanKind] = []
        self.num_steps_tried = 0

    def run_on_all_ranks(self, plan: StepPlan, targets: Any = None, rows: Any = None) -> StepResult:
        self.kinds.append(plan.kind)
        logits: Any = None
        if plan.kind is PlanKind.STEP:
            self.num_steps_tried += 1
            self.model.apply(plan)  # updates stay applied even if the computation fails
            if POISON in plan.token_ids:
                raise StepFailed("poison")
            logits = self.model.compute(plan) or None
        return StepResult(logits, [])


class ScriptedSampler:
    """Returns the tokens of the model. It fails for rows in `broken`; rows in `not_finite` get non-finite results."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.not_finite: set[str] = set()
        self.forgotten: list[str] = []

    def sample(self, logits: list[int], rows: abc.Sequence[SamplingRow]) -> list[SampledToken]:
        if any(row.id in self.broken for row in rows):
            raise ZeroDivisionError("a sampling step divides by zero")
        return [
            SampledToken(token, None, row.id not in self.not_finite)
            for token, row in zip(logits, rows, strict=True)
        ]

    def forget(self, sequence_id: str) -> None:
        self.forgotten.append(sequence_id)


class Lab:
    def __init__(
        self,
        tmp_path: Path,
        paged: bool = True,
        max_num_seqs: int = 4,
        max_waiting: int = 100,
        trace: str = "",
    ) -> None:
        self.blocks: BlockManager = make_block_manager(64, 4, paged)
        settings = SchedulerSettings(max_num_seqs, 16, 1000, max_waiting)
        self.scheduler = Scheduler(SchedulerConfig(settings), self.blocks, 64, NUM_IDS)
        self.executor = Executor()
        self.sampler = ScriptedSampler()
        self.board = StatusBoard.create(tmp_path / "status", 1)
        collaborators: list[Any] = [self.scheduler, self.blocks, self.executor, self.sampler]
        self.stopwatch = Stopwatch(time.perf_counter)
        self.core = EngineCore(*collaborators, self.stopwatch, StepTrace(trace), LargestStep.of(settings, 64))

    def serve(self, *script: list[tuple[bytes, ToEngine]], **options: Any) -> ScriptedSocket:
        """Run the script to its end, and check that all requests and blocks are gone."""
        scripted = ScriptedSocket(list(script), **options)
        self.lead(scripted)
        assert scripted.closed
        assert self.executor.kinds[-1] is PlanKind.STOP
        assert self.blocks.num_free == self.blocks.num_blocks
        assert not self.scheduler.has_work
        return scripted

    def lead(self, socket: ScriptedSocket) -> None:
        """Run the loop with this socket to its end."""
        Leader(self.core, INFO, socket, self.board, self.stopwatch).serve()  # type: ignore[arg-type]


def submit(*requests: Request, client: bytes = CLIENT) -> list[tuple[bytes, ToEngine]]:
    """Submit each request by itself."""
    return [(client, Submit((request,))) for request in requests]


def check_output(socket: ScriptedSocket, request: Request) -> None:
    """Check that the outputs equal those of the request running alone."""
    expected, reason = expected_output(request)
    assert socket.tokens(request.id) == expected
    assert socket.outputs[request.id][-1].finish_reason is reason
    assert not any(output.error_kind for output in socket.outputs[request.id])


def read_stats(socket: ScriptedSocket) -> EngineStats:
    (stats,) = [message.content for _, message in socket.sent if isinstance(message, Reply)]
    return stats
