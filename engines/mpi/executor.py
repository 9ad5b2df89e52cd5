"""One step on all ranks: rank 0 leads, the others follow, all beat when it is done."""

from __future__ import annotations

import logging
import traceback

import torch

from engines.health import EngineState, StatusBoard
from engines.mpi.batch import Batch
from engines.mpi.model_runner import ModelRunner
from engines.mpi.step_plan import PlanKind, StepPlan
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch

logger = logging.getLogger(__name__)


class StepFailed(Exception):
    """A step could not be computed; all ranks know it and are ready for the next one."""


class StepExecutor:
    """Runs plans. With several ranks an error inside the model ends all of them: the others wait in a sum that the
    failed one will never join.
    """

    def __init__(
        self, runner: ModelRunner, comm: Communicator, board: StatusBoard, stopwatch: Stopwatch
    ) -> None:
        self._runner = runner
        self._comm = comm
        self._board = board
        self._stopwatch = stopwatch

    def lead(self, plan: StepPlan) -> torch.Tensor | None:
        """Rank 0: have all ranks run a plan. Returns the logits of the sampling rows, if any.

        Raises:
            StepFailed: the step, not the engine, is at fault.
        """
        self._comm.broadcast_plan(plan.encode())
        return self._run(plan)

    def follow(self) -> bool:
        """Other ranks: run the next plan; False when it says stop."""
        plan = StepPlan.decode(self._comm.broadcast_plan(None))
        if plan.kind is PlanKind.STOP:
            return False
        try:
            self._run(plan)
        except StepFailed:
            logger.warning("rank %d: step failed", self._comm.rank)
        return True

    def _run(self, plan: StepPlan) -> torch.Tensor | None:
        logits = None
        if plan.kind is PlanKind.STEP:
            logits = self._compute(self._prepare(plan))
        self._board.beat(self._comm.rank)
        return logits

    def _prepare(self, plan: StepPlan) -> Batch:
        self._stopwatch.start()
        batch = None
        try:
            batch = self._runner.prepare(plan)
        except Exception:
            logger.exception("rank %d: cannot prepare the step", self._comm.rank)
        if self._comm.agree(0 if batch is not None else 1) or batch is None:
            raise StepFailed("the step could not be prepared")
        self._stopwatch.stop("prepare")
        return batch

    def _compute(self, batch: Batch) -> torch.Tensor | None:
        before = self._stopwatch.seconds.get("attention", 0.0)
        started = self._stopwatch.now()
        try:
            logits = self._runner.compute(batch)
        except Exception as error:
            logger.exception("rank %d: the model failed", self._comm.rank)
            if self._comm.world_size > 1:
                cause = "".join(traceback.format_exception_only(error)).strip()
                self._board.set_state(EngineState.FAILED, f"rank {self._comm.rank}: {cause}")
                self._comm.abort()
            raise StepFailed("the model failed") from error
        attention = self._stopwatch.seconds.get("attention", 0.0) - before
        self._stopwatch.add("model", self._stopwatch.now() - started - attention)
        return logits
