"""Execution of steps on all ranks: rank 0 sends each plan to the others, and every rank runs it and then writes a
heartbeat."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any

from engines.health import IDLE_BEAT_SECONDS, EngineState, StatusBoard
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult, StepRunner
from engines.mpi.scheduler.step_plan import PlanKind, StepPlan
from engines.parallel import Communicator
from engines.sampling.batch import SamplingRow
from engines.stopwatch import Stopwatch

logger = logging.getLogger(__name__)


class StepFailed(Exception):
    """A step could not be computed. All ranks know this and are ready for the next one."""


class RankBroken(Exception):
    """The cache or block tables of a rank do not match the plans, so no later step can be right. Ends the engine."""


class StepExecutor:
    """Runs plans. With several ranks, an error inside the model ends all of them: the other ranks wait in an
    all-reduce that the failed rank never joins."""

    def __init__(
        self, runner: StepRunner, comm: Communicator, board: StatusBoard, stopwatch: Stopwatch
    ) -> None:
        self._runner = runner
        self._comm = comm
        self._board = board
        self._stopwatch = stopwatch

    def run_on_all_ranks(
        self, plan: StepPlan, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """Run a plan on all ranks. Called on rank 0.

        targets: one for each sequence of the plan with WANT_PROMPT_LOGPROBS, in its order.
        rows: one for each sequence of the plan that samples, in its order.

        Raises:
            StepFailed: the step failed; the engine can go on.
            RankBroken: the engine cannot go on.
        """
        self._stopwatch.start()
        if self._comm.world_size > 1:
            self._comm.send_plan(plan.encode())
        self._stopwatch.stop("broadcast")
        return self._run(plan, targets, rows)

    def run_next_plan(self) -> bool:
        """Run the next plan that rank 0 sends. Called on the other ranks.

        Returns: False when the plan is to stop.

        Raises:
            RankBroken: this rank cannot go on.
        """
        while (data := self._comm.receive_plan(IDLE_BEAT_SECONDS)) is None:
            self._board.beat(self._comm.rank)  # rank 0 may wait longer for a GPU than a heartbeat lasts
        plan = StepPlan.decode(data)
        if plan.kind is PlanKind.STOP:
            return False
        try:
            self._run(plan, (), ())
        except StepFailed:
            logger.warning("rank %d: step failed", self._comm.rank)
        return True

    def _run(
        self, plan: StepPlan, targets: Sequence[PromptTargets], rows: Sequence[SamplingRow]
    ) -> StepResult:
        result = StepResult()
        if plan.kind is PlanKind.STEP:
            result = self._compute(self._prepare(plan), targets, rows)
        self._board.beat(self._comm.rank)
        return result

    def _prepare(self, plan: StepPlan) -> Any:
        self._stopwatch.start()
        try:
            self._runner.update(plan)
        except Exception as error:
            logger.exception("rank %d: cannot apply the changes of the plan", self._comm.rank)
            self._end_all(error)
            raise RankBroken(f"rank {self._comm.rank} has an inconsistent block table: {error}") from error
        batch = None
        try:
            batch = self._runner.prepare(plan)
        except Exception:
            logger.exception("rank %d: cannot prepare the step", self._comm.rank)
        if self._comm.all_reduce_max(0 if batch is not None else 1) or batch is None:
            raise StepFailed("the step could not be prepared")
        self._stopwatch.stop("prepare")
        return batch

    def _compute(
        self, batch: Any, targets: Sequence[PromptTargets], rows: Sequence[SamplingRow]
    ) -> StepResult:
        before = self._stopwatch.seconds.get("attention", 0.0)
        started = self._stopwatch.now()
        try:
            result = self._runner.compute(batch, targets, rows)
        except Exception as error:
            logger.exception("rank %d: the model failed", self._comm.rank)
            self._end_all(error)
            raise StepFailed("the model failed") from error
        attention = self._stopwatch.seconds.get("attention", 0.0) - before
        self._stopwatch.add("model", self._stopwatch.now() - started - attention)
        return result

    def _end_all(self, error: Exception) -> None:
        """With several ranks: report the cause and end all ranks, since the others would wait for this one forever."""
        if self._comm.world_size > 1:
            cause = "".join(traceback.format_exception_only(error)).strip()
            self._board.set_state(EngineState.FAILED, f"rank {self._comm.rank}: {cause}")
            self._comm.abort()
