"""The supervisor with fake child processes: exit codes, timeouts, and no processes left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from container.run.control import EngineControl
from container.run.processes import process_tree, session_members
from engines.health import EngineState, Health, StatusBoard
from tests.support.namespaces import NEW_PIDS, require
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).with_name("supervised_run.py")
ROOT = Path(__file__).resolve().parents[3]


class Run:
    """One supervised run in a child process."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        burst: float = 0.0,
        end: float = 60.0,
        copies: int = 1,
        long_service: float = 600.0,
    ) -> None:
        """`end` is the time in seconds that the engine and the web server have to stop."""
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
        self.web, *self.engines = map(int, self.read_line().split()[1:])
        self.engine = self.engines[0]

    def read_line(self) -> str:
        """Return the next line of stdout. Empty at the end of the stream."""
        return self.process.stdout.readline().strip() if self.process.stdout else ""

    def wait_exit(self, timeout: float = 200.0) -> tuple[int, str]:
        """Return (exit code, rest of stdout)."""
        out, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, out

    def leftover_processes(self) -> set[int]:
        """Return the processes that outlive the supervisor, after a grace period."""
        deadline = time.monotonic() + 60
        while (alive := self.members()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return alive

    def members(self) -> set[int]:
        """Return the live processes of the initial engines and of the web server."""
        return set().union(*(session_members(pid) for pid in (self.web, *self.engines)))

    def health(self, copy: int) -> Health:
        """Return the health on the status board of a copy."""
        return StatusBoard.open(self.folder / f"copy{copy}" / "status").read()

    def restarted_engine(self, copy: int) -> int:
        """Return the pid of the restarted engine of a copy."""
        old = {*self.engines, self.web}
        new_engines = [
            pid
            for pid in process_tree(self.process.pid) - old
            if f"copy{copy}" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        return new_engines[0]


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
            with contextlib.suppress(ProcessLookupError):  # the supervisor may kill them at the same time
                os.kill(pid, signal.SIGKILL)
        run.process.kill()
        run.process.communicate()


def test_sigterm_drains_and_exits_with_zero(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.read_line() == "ready"
    run.process.terminate()
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (0, set())
    assert "did not stop" not in out
    assert out.splitlines()[-1] == "stopped"


def test_a_lost_reader_of_stdout_does_not_change_the_shutdown(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.read_line() == "ready"
    if run.process.stdout:
        run.process.stdout.close()
    run.process.terminate()
    code, _ = run.wait_exit()
    assert (code, run.leftover_processes()) == (0, set())
    assert (run.folder / "drained").exists(), "the engine was killed without a drain"


def test_an_engine_that_does_not_drain_is_killed_and_the_exit_code_is_zero(
    start: Callable[..., Run],
) -> None:
    run = start("ignores-drain", "ignores-term", end=2.0)
    assert run.read_line() == "ready"
    terminated = time.monotonic()
    run.process.terminate()
    code, out = run.wait_exit()
    assert time.monotonic() - terminated >= 2
    assert (code, run.leftover_processes()) == (0, set())
    assert "did not stop within 2 s" in out


def test_an_engine_that_fails_while_draining_is_an_error(start: Callable[..., Run]) -> None:
    run = start("breaks-in-drain", "obeys")
    assert run.read_line() == "ready"
    run.process.terminate()
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (1, set())
    assert "engine ended with exit code 7" in out


def test_a_second_signal_stops_immediately(start: Callable[..., Run]) -> None:
    run = start("ignores-drain", "ignores-term")
    assert run.read_line() == "ready"
    run.process.terminate()
    assert run.read_line().startswith("stopping")
    run.process.terminate()
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (1, set())
    assert "did not stop" not in out
    assert "stopped immediately" in out


def test_a_burst_of_signals_counts_as_one(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", burst=60.0)
    assert run.read_line() == "ready"
    for _ in range(5):
        run.process.terminate()
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_a_signal_while_loading_exits_with_zero(start: Callable[..., Run]) -> None:
    run = start("hangs-loading", "obeys")
    run.process.send_signal(signal.SIGINT)
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (0, set())
    assert "stopping" not in out


def test_a_killed_engine_stops_the_server_and_the_cause_is_reported(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.read_line() == "ready"
    killed = time.monotonic()
    os.kill(run.engine, signal.SIGKILL)
    code, out = run.wait_exit()
    assert time.monotonic() - killed >= 0.3
    assert (code, run.leftover_processes()) == (1, set())
    assert out.splitlines()[-1].startswith("error: shutting down: engine was killed by SIGKILL")


def test_child_processes_of_a_killed_engine_are_killed(start: Callable[..., Run]) -> None:
    run = start("grandchild", "obeys")
    assert run.read_line() == "ready"
    assert len(session_members(run.engine)) == 2
    os.kill(run.engine, signal.SIGKILL)
    assert run.wait_exit()[0] == 1
    assert run.leftover_processes() == set()


def test_the_error_of_an_engine_that_cannot_load_is_quoted(start: Callable[..., Run]) -> None:
    code, out = start("dies-loading", "obeys").wait_exit()
    assert code == 1
    assert "engine ended with exit code 3: ValueError: the file model.safetensors is cut short" in out
    assert "ready" not in out.splitlines()


def test_the_failure_on_the_status_board_is_reported(start: Callable[..., Run]) -> None:
    code, out = start("reports-failure", "obeys").wait_exit()
    assert code == 1
    assert "the engine failed: rank 0: no memory for the cache" in out


def test_the_engine_stops_when_the_web_server_exits(start: Callable[..., Run]) -> None:
    run = start("obeys", "dies")
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (1, set())
    assert "web server ended with exit code 4: cannot import the application" in out


def test_loading_times_out(start: Callable[..., Run]) -> None:
    run = start("hangs-loading", "obeys", "0.5")
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (1, set())
    assert "not ready within 0.5 s (option.model_loading_timeout)" in out


def test_no_process_outlives_a_killed_supervisor(start: Callable[..., Run]) -> None:
    run = start("obeys", "ignores-term")
    assert run.read_line() == "ready"
    run.process.kill()
    assert run.wait_exit()[0] == -signal.SIGKILL
    assert run.leftover_processes() == set()


def test_the_web_server_has_a_lower_priority_than_the_engine(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.read_line() == "ready"
    engine = os.getpriority(os.PRIO_PROCESS, run.engine)
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, run.web) == engine + 5)  # it may still be starting


def test_process_1_of_a_container_reaps_orphans(tmp_path: Path) -> None:
    require(NEW_PIDS)
    result = subprocess.run(
        [*NEW_PIDS, sys.executable, str(PROGRAM), str(tmp_path), "leaves-orphans", "obeys"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "END": "60", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
    )
    assert result.returncode == 1, result.stderr
    # Reaping orphans does not lose the exit code of the engine.
    assert "engine ended with exit code 3: left: []" in result.stdout


def test_a_killed_copy_is_restarted_with_the_settings_of_the_others(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", copies=2)
    assert run.read_line() == "ready"
    with EngineControl(f"ipc://{run.folder}/copy2/engine.sock") as control:
        assert control.scheduler({"max_num_seqs": 7}, 60, lambda: True) is not None
    old = StatusBoard.open(run.folder / "copy1" / "status")
    os.kill(run.engine, signal.SIGKILL)
    warning = run.read_line()
    assert "copy1 was killed by SIGKILL" in warning
    assert "restarting copy1 in 0.1 s" in warning
    assert run.read_line() == "copy1 is serving again"
    assert old.read().state is EngineState.FAILED
    assert old.is_replaced
    assert [run.health(copy).state for copy in (1, 2)] == [EngineState.READY] * 2
    assert (run.folder / "copy1" / "seqs").read_text() == "7"
    run.process.terminate()
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_a_copy_that_fails_three_times_in_a_row_stops_the_server(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", copies=2)
    assert run.read_line() == "ready"
    os.kill(run.engine, signal.SIGKILL)
    for delay in ("0.1", "0.2"):
        assert f"in {delay} s" in run.read_line()
        assert run.read_line() == "copy1 is serving again"
        os.kill(run.restarted_engine(1), signal.SIGKILL)
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (1, set())
    assert (
        "shutting down: copy1 keeps failing and is not restarted; last failure: copy1 was killed by SIGKILL"
        in out
    )


def test_failures_after_long_service_do_not_add_up(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", copies=2, long_service=0.0)
    assert run.read_line() == "ready"
    os.kill(run.engine, signal.SIGKILL)
    for _ in range(3):
        assert "in 0.1 s" in run.read_line()
        assert run.read_line() == "copy1 is serving again"
        os.kill(run.restarted_engine(1), signal.SIGKILL)
    assert "in 0.1 s" in run.read_line()
    run.process.terminate()
    code, out = run.wait_exit()
    assert (code, run.leftover_processes()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_a_copy_that_cannot_load_at_startup_stops_the_server(start: Callable[..., Run]) -> None:
    code, out = start("dies-loading", "obeys", copies=2).wait_exit()
    assert code == 1
    assert "ended with exit code 3: ValueError: the file model.safetensors is cut short" in out
    assert "started again" not in out
