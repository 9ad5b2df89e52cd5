"""One step on all ranks, heartbeats, and the handling of failures. The ranks are fakes, most of them in one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.health import EngineState, StatusBoard
from engines.mpi.runner.executor import RankBroken, StepExecutor, StepFailed
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import StepResult
from engines.mpi.scheduler.step_plan import WANT_LOGITS, PlanKind, StepPlan
from engines.parallel import MpiCommunicator
from engines.stopwatch import Stopwatch
from tests.support.waiting import wait_until

_STEP = StepPlan(PlanKind.STEP, [4], [0], [2], [WANT_LOGITS], [1, 2], [4, 0, 1, 7], [5, 6])
_RESULT = StepResult()


class _Comm:
    """A fake communicator. `others` is the worst status that the other ranks report."""

    def __init__(self, rank: int = 0, world_size: int = 1, others: int = 0, plan: bytes = b"") -> None:
        self.rank = rank
        self.world_size = world_size
        self.others = others
        self.plan = plan
        self.sent: list[bytes] = []
        self.agreed: list[int] = []
        self.aborted = False

    def send_plan(self, plan: bytes) -> None:
        self.sent.append(plan)

    def receive_plan(self, timeout: float) -> bytes:
        return self.plan

    def all_reduce_max(self, value: int) -> int:
        self.agreed.append(value)
        return max(value, self.others)

    def abort(self) -> None:
        self.aborted = True


class _Runner:
    """A fake runner that records its calls. `fail_in` names the call that fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.plans: list[bytes] = []
        self.targets: list[Sequence[PromptTargets]] = []
        self.fail_in = ""

    def update(self, plan: StepPlan) -> None:
        self.plans.append(plan.encode())
        self._record("update")

    def prepare(self, plan: StepPlan) -> bytes:
        self._record("prepare")
        return plan.encode()

    def compute(self, batch: bytes, targets: Sequence[PromptTargets], rows: object) -> StepResult:
        assert batch == self.plans[-1]
        self.targets.append(targets)
        self._record("compute")
        return _RESULT

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if self.fail_in == call:
            raise RuntimeError(f"no {call} today")


@pytest.fixture
def board(tmp_path: Path, frozen_clock: float) -> StatusBoard:
    board = StatusBoard.create(tmp_path / "status", 1)
    board.set_state(EngineState.READY)
    return board


@pytest.fixture
def runner() -> _Runner:
    return _Runner()


MakeExecutor = Callable[[_Comm], StepExecutor]


@pytest.fixture
def make_executor(board: StatusBoard, runner: _Runner) -> MakeExecutor:
    return lambda comm: StepExecutor(runner, comm, board, Stopwatch(lambda: 0.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_leader_sends_the_plan_and_returns_the_result(
    make_executor: MakeExecutor, runner: _Runner, board: StatusBoard, world_size: int
) -> None:
    comm = _Comm(world_size=world_size)
    targets = [PromptTargets((0,) * count, 1) for count in (3, 2)]
    assert not board.read().ready
    assert make_executor(comm).run_on_all_ranks(_STEP, targets) is _RESULT
    assert runner.targets == [targets]
    assert runner.plans == [_STEP.encode()]
    assert comm.sent == ([] if world_size == 1 else runner.plans)
    assert runner.calls == ["update", "prepare", "compute"]
    assert board.read().ready


def test_a_beat_computes_nothing(make_executor: MakeExecutor, runner: _Runner, board: StatusBoard) -> None:
    assert make_executor(_Comm()).run_on_all_ranks(StepPlan(PlanKind.BEAT)) == StepResult()
    assert runner.calls == []
    assert board.read().ready


def test_a_follower_runs_the_plan_that_it_receives(make_executor: MakeExecutor, runner: _Runner) -> None:
    assert make_executor(_Comm(plan=_STEP.encode())).run_next_plan()
    assert runner.calls == ["update", "prepare", "compute"]
    assert runner.plans == [_STEP.encode()]


def test_a_follower_ends_on_a_stop_plan(make_executor: MakeExecutor, runner: _Runner) -> None:
    assert not make_executor(_Comm(plan=StepPlan(PlanKind.STOP).encode())).run_next_plan()
    assert runner.calls == []


def test_a_rank_that_waits_for_a_plan_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may wait longer for a GPU than a heartbeat lasts. Only rank 0's own heartbeat shows that it hangs."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("engines.health.time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("engines.mpi.runner.executor.IDLE_BEAT_SECONDS", 0.01)
    board = StatusBoard.create(tmp_path / "status", 2)
    board.set_state(EngineState.READY)
    barrier = threading.Barrier(2, timeout=20)

    def connect(rank: int) -> MpiCommunicator:
        world = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: 2, Barrier=barrier.wait)
        return MpiCommunicator(world, tmp_path)

    def run_next_plan() -> bool:
        executor = StepExecutor(_Runner(), connect(1), board, Stopwatch(time.perf_counter))  # type: ignore[arg-type]
        return executor.run_next_plan()

    with ThreadPoolExecutor(1) as pool:
        follower = pool.submit(run_next_plan)
        leader = connect(0)
        try:
            for _ in range(2):
                clock.now += 8
                board.beat(0)
                wait_until(lambda: board.read().ready, seconds=20)
            clock.now += 8
            time.sleep(0.05)
            assert not board.read().ready
        finally:
            leader.send_plan(StepPlan(PlanKind.STOP).encode())
        assert not follower.result(timeout=20)


_UNPREPARED = pytest.mark.parametrize(
    ("here", "others"), [("prepare", 0), ("", 1)], ids=["this rank", "another rank"]
)


@_UNPREPARED
def test_a_step_that_a_rank_cannot_prepare_fails_after_all_ranks_agree(
    make_executor: MakeExecutor, runner: _Runner, board: StatusBoard, here: str, others: int
) -> None:
    runner.fail_in = here
    comm = _Comm(world_size=2, others=others)
    with pytest.raises(StepFailed):
        make_executor(comm).run_on_all_ranks(_STEP)
    assert comm.agreed == [1 - others]
    assert runner.calls == ["update", "prepare"]
    assert board.read().state is EngineState.READY
    assert not comm.aborted


@_UNPREPARED
def test_a_follower_continues_after_a_step_that_could_not_be_prepared(
    make_executor: MakeExecutor, runner: _Runner, here: str, others: int
) -> None:
    runner.fail_in = here
    comm = _Comm(rank=0, world_size=2, others=others, plan=_STEP.encode())
    executor = make_executor(comm)
    assert executor.run_next_plan()
    runner.fail_in, comm.others = "", 0
    assert executor.run_next_plan()
    assert runner.calls == ["update", "prepare", "update", "prepare", "compute"]


def test_a_failing_model_on_a_single_rank_fails_only_the_step(
    make_executor: MakeExecutor, runner: _Runner, board: StatusBoard
) -> None:
    runner.fail_in = "compute"
    comm = _Comm()
    executor = make_executor(comm)
    with pytest.raises(StepFailed):
        executor.run_on_all_ranks(_STEP)
    assert not comm.aborted
    assert board.read().state is EngineState.READY
    runner.fail_in = ""
    assert executor.run_on_all_ranks(_STEP) is _RESULT


def test_a_failing_model_on_several_ranks_ends_all_and_reports_the_cause(
    make_executor: MakeExecutor, runner: _Runner, board: StatusBoard
) -> None:
    """The other ranks wait in an all-reduce that this rank never joins."""
    runner.fail_in = "compute"
    comm = _Comm(rank=0, world_size=2)
    with pytest.raises(StepFailed):
        make_executor(comm).run_on_all_ranks(_STEP)
    assert comm.aborted
    assert board.read().state is EngineState.FAILED
    assert board.read().reason == "rank 0: RuntimeError: no compute today"


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rank_that_fails_to_apply_updates_is_broken(
    make_executor: MakeExecutor, runner: _Runner, board: StatusBoard, world_size: int
) -> None:
    """The leader must not retry the halves of the step, because they do not contain the updates."""
    runner.fail_in = "update"
    comm = _Comm(world_size=world_size, plan=_STEP.encode())
    executor = make_executor(comm)
    for run in (lambda: executor.run_on_all_ranks(_STEP), executor.run_next_plan):
        with pytest.raises(RankBroken, match=r"rank 0 .* no update today"):
            run()
    assert set(runner.calls) == {"update"}
    assert comm.agreed == []
    assert comm.aborted == (world_size > 1)
    assert (board.read().state is EngineState.FAILED) == (world_size > 1)


def test_time_outside_the_model_is_counted_separately(board: StatusBoard, runner: _Runner) -> None:
    times = iter(range(1000))
    stopwatch = Stopwatch(lambda: float(next(times)))
    executor = StepExecutor(runner, _Comm(), board, stopwatch)  # type: ignore[arg-type]
    executor.run_on_all_ranks(_STEP)
    assert set(stopwatch.reset()) == {"broadcast", "prepare", "model"}
