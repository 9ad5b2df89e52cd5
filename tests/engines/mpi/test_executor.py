"""One step on all ranks: what fails where, and who hears of it. Fake ranks in one thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.health import EngineState, StatusBoard
from engines.mpi.executor import StepExecutor, StepFailed
from engines.mpi.step_plan import PlanKind, ScheduledSequence, StepPlan
from engines.stopwatch import Stopwatch

_STEP = StepPlan(PlanKind.STEP, (ScheduledSequence((1, 2), 0, (0,), True),), (3,))


class _Comm:
    """The other ranks as a test wants them: `others` is the worst status that they report."""

    def __init__(self, rank: int = 0, world_size: int = 1, others: int = 0, plan: bytes = b"") -> None:
        self.rank = rank
        self.world_size = world_size
        self.others = others
        self.plan = plan
        self.sent: list[bytes] = []
        self.agreed: list[int] = []
        self.aborted = False

    def broadcast_plan(self, plan: bytes | None) -> bytes:
        if plan is None:
            return self.plan
        self.sent.append(plan)
        return plan

    def agree(self, status: int) -> int:
        self.agreed.append(status)
        return max(status, self.others)

    def abort(self) -> None:
        self.aborted = True


class _Runner:
    """Remembers what it was asked; `prepare` and `compute` can be made to fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.fail_in = ""

    def prepare(self, plan: StepPlan) -> object:
        return self._do("prepare", plan, ("batch", plan))

    def compute(self, batch: object) -> object:
        return self._do("compute", batch, "logits")

    def _do(self, part: str, argument: object, result: object) -> object:
        self.calls.append((part, argument))
        if self.fail_in == part:
            raise RuntimeError(f"no {part} today")
        return result


@pytest.fixture
def board(tmp_path: Path) -> StatusBoard:
    board = StatusBoard.create(tmp_path / "status", 1)
    board.set_state(EngineState.READY)
    return board


@pytest.fixture
def runner() -> _Runner:
    return _Runner()


Make = Callable[[_Comm], StepExecutor]


@pytest.fixture
def make(board: StatusBoard, runner: _Runner) -> Make:
    return lambda comm: StepExecutor(runner, comm, board, Stopwatch(lambda: 0.0))  # type: ignore[arg-type]


def test_the_leader_tells_the_plan_and_returns_the_logits(
    make: Make, runner: _Runner, board: StatusBoard
) -> None:
    comm = _Comm()
    assert not board.read().ready
    assert make(comm).lead(_STEP) == "logits"  # type: ignore[comparison-overlap]
    assert [StepPlan.decode(plan) for plan in comm.sent] == [_STEP]
    assert runner.calls == [("prepare", _STEP), ("compute", ("batch", _STEP))]
    assert board.read().ready


def test_a_beat_computes_nothing(make: Make, runner: _Runner, board: StatusBoard) -> None:
    assert make(_Comm()).lead(StepPlan(PlanKind.BEAT)) is None
    assert runner.calls == []
    assert board.read().ready


def test_a_follower_runs_the_plan_that_it_hears(make: Make, runner: _Runner) -> None:
    assert make(_Comm(plan=_STEP.encode())).follow()
    assert runner.calls == [("prepare", _STEP), ("compute", ("batch", _STEP))]


def test_a_follower_ends_when_told_to(make: Make, runner: _Runner) -> None:
    assert not make(_Comm(plan=StepPlan(PlanKind.STOP).encode())).follow()
    assert runner.calls == []


def test_a_step_that_cannot_be_prepared_here_fails_after_all_have_agreed(
    make: Make, runner: _Runner, board: StatusBoard
) -> None:
    runner.fail_in = "prepare"
    comm = _Comm(world_size=2)
    with pytest.raises(StepFailed):
        make(comm).lead(_STEP)
    assert comm.agreed == [1]
    assert [part for part, _ in runner.calls] == ["prepare"]
    assert board.read().state is EngineState.READY
    assert not comm.aborted


def test_a_step_that_another_rank_cannot_prepare_is_not_computed(make: Make, runner: _Runner) -> None:
    with pytest.raises(StepFailed):
        make(_Comm(world_size=2, others=1)).lead(_STEP)
    assert [part for part, _ in runner.calls] == ["prepare"]


@pytest.mark.parametrize(("here", "others"), [("prepare", 0), ("", 1)])
def test_a_follower_goes_on_after_a_step_that_could_not_be_prepared(
    make: Make, runner: _Runner, here: str, others: int
) -> None:
    runner.fail_in = here
    comm = _Comm(rank=0, world_size=2, others=others, plan=_STEP.encode())
    executor = make(comm)
    assert executor.follow()
    runner.fail_in, comm.others = "", 0
    assert executor.follow()
    assert [part for part, _ in runner.calls] == ["prepare", "prepare", "compute"]


def test_a_model_that_fails_on_the_only_rank_fails_the_step_alone(
    make: Make, runner: _Runner, board: StatusBoard
) -> None:
    runner.fail_in = "compute"
    comm = _Comm()
    executor = make(comm)
    with pytest.raises(StepFailed):
        executor.lead(_STEP)
    assert not comm.aborted
    assert board.read().state is EngineState.READY
    runner.fail_in = ""
    assert executor.lead(_STEP) == "logits"  # type: ignore[comparison-overlap]


def test_a_model_that_fails_among_several_ranks_ends_all_with_the_cause(
    make: Make, runner: _Runner, board: StatusBoard
) -> None:
    """The others wait in a sum that this rank will never join."""
    runner.fail_in = "compute"
    comm = _Comm(rank=0, world_size=2)
    with pytest.raises(StepFailed):
        make(comm).lead(_STEP)
    assert comm.aborted
    assert board.read().state is EngineState.FAILED
    assert board.read().reason == "rank 0: RuntimeError: no compute today"
