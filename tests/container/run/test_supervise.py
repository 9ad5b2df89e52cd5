"""The supervisor with fake children: exit codes, nothing left behind, and in time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.run.control import EngineControl
from container.run.processes import process_tree, session_members
from container.run.supervise import Supervisor
from engines.copies.settings_lock import settings_lock
from engines.core import SchedulerSettings
from engines.errors import Unavailable
from engines.health import EngineState, Health, StatusBoard
from tests.support.namespaces import NEW_PIDS, require
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).with_name("supervised_run.py")
ROOT = Path(__file__).resolve().parents[3]


class Run:
    """One supervised run as a child process."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        burst: float = 0.0,
        end: float = 60.0,
        copies: int = 1,
        long_service: float = 600.0,
    ) -> None:
        """end: seconds that the engine and the web server are given to stop."""
        self.folder = folder
        path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "BURST": str(burst),
                "END": str(end),
                "COPIES": str(copies),
                "LONG_SERVICE": str(long_service),
            },
        )
        self.web, *self.engines = map(int, self.line().split()[1:])
        self.engine = self.engines[0]

    def line(self) -> str:
        """The next line of stdout; empty at its end."""
        return self.process.stdout.readline().strip() if self.process.stdout else ""

    def end(self, timeout: float = 200.0) -> tuple[int, str]:
        """(exit code, rest of stdout)."""
        out, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, out

    def left(self) -> set[int]:
        """Processes that outlived the supervisor; waits a moment, for death takes one."""
        deadline = time.monotonic() + 60
        while (left := self.members()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def members(self) -> set[int]:
        """Living processes of the engines that were started first, and of the web server."""
        return set().union(*(session_members(pid) for pid in (self.web, *self.engines)))

    def state(self, copy: int) -> Health:
        """What the status board of a copy says."""
        return StatusBoard.open(self.folder / f"copy{copy}" / "status").read()

    def restarted(self, copy: int) -> int:
        """The process of a copy's new engine."""
        old = {*self.engines, self.web}
        found = [
            pid
            for pid in process_tree(self.process.pid) - old
            if f"copy{copy}" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        return found[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def starter(*arguments: str, **more: float) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        runs.append(Run(folder, *arguments, **more))
        return runs[-1]

    yield starter
    for run in runs:
        for pid in run.members():
            with contextlib.suppress(ProcessLookupError):  # the supervisor ends them at the same time
                os.kill(pid, signal.SIGKILL)
        run.process.kill()
        run.process.communicate()


def test_sigterm_drains_and_ends_with_zero(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.line() == "ready"
    run.process.terminate()
    code, out = run.end()
    assert (code, run.left()) == (0, set())
    assert "did not stop" not in out
    assert out.splitlines()[-1] == "stopped"


def test_an_engine_that_does_not_drain_is_killed_and_the_end_is_still_clean(
    start: Callable[..., Run],
) -> None:
    run = start("ignores-drain", "ignores-term", end=2.0)
    assert run.line() == "ready"
    asked = time.monotonic()
    run.process.terminate()
    code, out = run.end()
    assert time.monotonic() - asked >= 2
    assert (code, run.left()) == (0, set())
    assert "did not stop within 2 s" in out


def test_an_engine_that_breaks_while_draining_is_no_success(start: Callable[..., Run]) -> None:
    run = start("breaks-in-drain", "obeys")
    assert run.line() == "ready"
    run.process.terminate()
    code, out = run.end()
    assert (code, run.left()) == (1, set())
    assert "engine ended with exit code 7" in out


def test_a_second_signal_ends_at_once(start: Callable[..., Run]) -> None:
    run = start("ignores-drain", "ignores-term")
    assert run.line() == "ready"
    run.process.terminate()
    assert run.line().startswith("stopping")
    run.process.terminate()
    code, out = run.end()
    assert (code, run.left()) == (1, set())
    assert "did not stop" not in out
    assert "stopped immediately" in out


def test_a_burst_of_signals_is_one_request_to_stop(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", burst=60.0)
    assert run.line() == "ready"
    for _ in range(5):
        run.process.terminate()
    code, out = run.end()
    assert (code, run.left()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_sigterm_while_loading_ends_with_zero(start: Callable[..., Run]) -> None:
    run = start("hangs-loading", "obeys")
    run.process.send_signal(signal.SIGINT)
    code, out = run.end()
    assert (code, run.left()) == (0, set())
    assert "stopping" not in out


def test_a_killed_engine_ends_the_server_with_the_cause(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.line() == "ready"
    killed = time.monotonic()
    os.kill(run.engine, signal.SIGKILL)
    code, out = run.end()
    assert time.monotonic() - killed >= 0.3
    assert (code, run.left()) == (1, set())
    assert out.splitlines()[-1].startswith("error: shutting down: engine was killed by SIGKILL")


def test_what_a_dead_engine_started_goes_with_it(start: Callable[..., Run]) -> None:
    run = start("grandchild", "obeys")
    assert run.line() == "ready"
    assert len(session_members(run.engine)) == 2
    os.kill(run.engine, signal.SIGKILL)
    assert run.end()[0] == 1
    assert run.left() == set()


def test_an_engine_that_cannot_load_is_quoted(start: Callable[..., Run]) -> None:
    code, out = start("dies-loading", "obeys").end()
    assert code == 1
    assert "engine ended with exit code 3: ValueError: the file model.safetensors is cut short" in out
    assert "ready" not in out.splitlines()


def test_the_cause_on_the_board_is_told(start: Callable[..., Run]) -> None:
    code, out = start("reports-failure", "obeys").end()
    assert code == 1
    assert "the engine failed: rank 0: no memory for the cache" in out


def test_a_dead_web_server_ends_the_engine(start: Callable[..., Run]) -> None:
    run = start("obeys", "dies")
    code, out = run.end()
    assert (code, run.left()) == (1, set())
    assert "web server ended with exit code 4: cannot import the application" in out


def test_loading_has_a_time_limit(start: Callable[..., Run]) -> None:
    run = start("hangs-loading", "obeys", "0.5")
    code, out = run.end()
    assert (code, run.left()) == (1, set())
    assert "not ready within 0.5 s (option.model_loading_timeout)" in out


def test_nothing_outlives_a_killed_supervisor(start: Callable[..., Run]) -> None:
    run = start("obeys", "ignores-term")
    assert run.line() == "ready"
    run.process.kill()
    assert run.end()[0] == -signal.SIGKILL
    assert run.left() == set()


def test_the_web_server_runs_below_the_engine(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.line() == "ready"
    engine = os.getpriority(os.PRIO_PROCESS, run.engine)
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, run.web) == engine + 5)  # it may still be starting


def test_the_first_process_of_a_container_collects_what_others_leave(tmp_path: Path) -> None:
    require(NEW_PIDS)
    done = subprocess.run(
        [*NEW_PIDS, sys.executable, str(PROGRAM), str(tmp_path), "leaves-orphans", "obeys"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "END": "60", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
    )
    assert done.returncode == 1, done.stderr
    # Nor is the engine's own exit code lost to the collecting.
    assert "engine ended with exit code 3: left: []" in done.stdout


def test_one_of_several_copies_is_started_again_and_gets_the_settings_of_the_others(
    start: Callable[..., Run],
) -> None:
    run = start("obeys", "obeys", copies=2)
    assert run.line() == "ready"
    with EngineControl(f"ipc://{run.folder}/copy2/engine.sock") as control:
        assert control.scheduler({"max_num_seqs": 7}, 60, lambda: True) is not None
    old = StatusBoard.open(run.folder / "copy1" / "status")
    os.kill(run.engine, signal.SIGKILL)
    warning = run.line()
    assert "copy1 was killed by SIGKILL" in warning
    assert "restarting copy1 in 0.1 s" in warning
    assert run.line() == "copy1 is serving again"
    assert old.read().state is EngineState.FAILED
    assert old.is_replaced
    assert [run.state(copy).state for copy in (1, 2)] == [EngineState.READY] * 2
    assert (run.folder / "copy1" / "seqs").read_text() == "7"
    run.process.terminate()
    code, out = run.end()
    assert (code, run.left()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_a_copy_that_ends_three_times_in_a_row_ends_the_server(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", copies=2)
    assert run.line() == "ready"
    os.kill(run.engine, signal.SIGKILL)
    for delay in ("0.1", "0.2"):
        assert f"in {delay} s" in run.line()
        assert run.line() == "copy1 is serving again"
        os.kill(run.restarted(1), signal.SIGKILL)
    code, out = run.end()
    assert (code, run.left()) == (1, set())
    assert (
        "shutting down: copy1 keeps failing and is not restarted; last failure: copy1 was killed by SIGKILL"
        in out
    )


def test_ends_after_long_service_are_no_row(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", copies=2, long_service=0.0)
    assert run.line() == "ready"
    os.kill(run.engine, signal.SIGKILL)
    for _ in range(3):
        assert "in 0.1 s" in run.line()
        assert run.line() == "copy1 is serving again"
        os.kill(run.restarted(1), signal.SIGKILL)
    assert "in 0.1 s" in run.line()
    run.process.terminate()
    code, out = run.end()
    assert (code, run.left()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_a_copy_that_cannot_load_at_the_start_ends_the_server(start: Callable[..., Run]) -> None:
    code, out = start("dies-loading", "obeys", copies=2).end()
    assert code == 1
    assert "ended with exit code 3: ValueError: the file model.safetensors is cut short" in out
    assert "started again" not in out


def test_a_copy_gets_the_settings_of_the_others_while_nobody_changes_them(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    given: list[dict[str, Any]] = []

    def scheduler(changes: dict[str, Any], *_: object) -> SchedulerSettings:
        with pytest.raises(Unavailable), settings_lock(lock, 0, time.sleep):
            pass
        given.append(changes)
        return SchedulerSettings(32, 256, 256, 7)

    copies: list[Any] = [
        SimpleNamespace(name=f"copy {n}", was_ready=True, control=SimpleNamespace(scheduler=scheduler))
        for n in (1, 2)
    ]
    said: list[str] = []
    signals: Any = SimpleNamespace(wait=time.sleep, count=0)
    supervisor = Supervisor(copies, None, signals, said.append, lock)  # type: ignore[arg-type]
    supervisor._restore_settings(copies[1])
    assert [changes.get("max_waiting") for changes in given] == [None, 7]
    assert said == ["copy 2 is serving again"]
