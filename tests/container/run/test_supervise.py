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
from typing import Any

import pytest

from container.run.control import EngineControl
from container.run.processes import process_tree, session_members
from engines.health import EngineState, StatusBoard
from tests.support.namespaces import NEW_PIDS, require
from tests.support.paths import child_environment
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).with_name("supervised_run.py")


class Run:
    """One supervised run in a child process."""

    def __init__(
        self, folder: Path, *arguments: str, burst: float = 0.0, end: float = 60.0, copies: int = 1
    ) -> None:
        """`end` is the time in seconds that the engine and the web server have to stop."""
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment({"BURST": str(burst), "END": str(end), "COPIES": str(copies)}),
        )
        self.errors = ""
        """Text on stderr, once the run has ended."""
        self.web, *self.engines = map(int, self.read_line().split()[1:])
        self.engine = self.engines[0]

    def read_line(self) -> str:
        """Return the next line of stdout. Empty at the end of the stream."""
        return self.process.stdout.readline().strip() if self.process.stdout else ""

    def wait_exit(self, code: int) -> str:
        """Return the rest of stdout, then stderr, which has the reason of a failure. Check the exit code, and that no
        process outlives the supervisor."""
        out, self.errors = self.process.communicate(timeout=200)
        out += self.errors
        assert self.process.returncode == code, out
        wait_until(lambda: not self.members(), seconds=60)
        return out

    def members(self) -> set[int]:
        """Return the live processes of the initial engines and of the web server."""
        return set().union(*(session_members(pid) for pid in (self.web, *self.engines)))

    def restarted_engine(self) -> int:
        """Return the pid of the restarted engine of the first copy."""
        new = process_tree(self.process.pid) - {*self.engines, self.web}
        (pid,) = (pid for pid in new if "copy1" in Path(f"/proc/{pid}/cmdline").read_text())
        return pid


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start an engine and a web server with these modes, and wait until they are ready, if they become so."""
    runs: list[Run] = []

    def starter(engine: str, web: str, *more: str, ready: bool = True, **options: Any) -> Run:
        runs.append(Run(tmp_path, engine, web, *more, **options))
        assert not ready or runs[-1].read_line() == "ready"
        return runs[-1]

    yield starter
    for run in runs:
        for pid in run.members():
            with contextlib.suppress(ProcessLookupError):  # the supervisor may kill them at the same time
                os.kill(pid, signal.SIGKILL)
        run.process.kill()
        run.process.communicate()


def test_sigterm_drains_and_exits_with_zero(start: Start) -> None:
    run = start("obeys", "obeys")
    run.process.terminate()
    out = run.wait_exit(0)
    assert "did not stop" not in out
    assert out.splitlines()[-1] == "stopped"


@pytest.fixture
def inherit_sighup() -> Iterator[Callable[[signal.Handlers], None]]:
    """Set how the processes that the test starts handle SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_drains_and_exits_with_zero(
    start: Start, inherit_sighup: Callable[[signal.Handlers], None]
) -> None:
    inherit_sighup(signal.SIG_DFL)
    run = start("obeys", "obeys")
    run.process.send_signal(signal.SIGHUP)
    assert run.wait_exit(0).splitlines()[-1] == "stopped"
    assert (run.folder / "drained").exists(), "the engine was killed without a drain"


def test_a_closed_terminal_does_not_stop_a_server_under_nohup(
    start: Start, inherit_sighup: Callable[[signal.Handlers], None]
) -> None:
    inherit_sighup(signal.SIG_IGN)
    run = start("obeys", "obeys")
    run.process.send_signal(signal.SIGHUP)
    run.process.terminate()
    run.wait_exit(0)  # not 1, as after two signals


def test_a_lost_reader_of_stdout_does_not_change_the_shutdown(start: Start) -> None:
    run = start("obeys", "obeys")
    if run.process.stdout:
        run.process.stdout.close()
    run.process.terminate()
    run.wait_exit(0)
    assert (run.folder / "drained").exists(), "the engine was killed without a drain"


def test_readers_that_hang_do_not_change_the_shutdown(start: Start) -> None:
    run = start("obeys", "obeys")
    for number in (1, 2):
        descriptor = os.open(f"/proc/{run.process.pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(descriptor, b"x" * size)
        os.close(descriptor)
    run.process.terminate()
    assert run.process.wait(60) == 0
    run.wait_exit(0)
    assert (run.folder / "drained").exists(), "the engine was killed without a drain"


def test_an_engine_that_does_not_drain_is_killed_and_a_burst_of_signals_counts_as_one(start: Start) -> None:
    run = start("ignores-drain", "ignores-term", end=1.0, burst=60.0)
    terminated = time.monotonic()
    run.process.terminate()
    assert run.read_line().startswith("stopping")
    run.process.terminate()
    out = run.wait_exit(0)
    assert time.monotonic() - terminated >= 1
    assert "did not stop within 1 s" in out


def test_an_engine_that_fails_while_draining_is_an_error(start: Start) -> None:
    run = start("breaks-in-drain", "obeys")
    run.process.terminate()
    out = run.wait_exit(1)
    assert "engine ended with exit code 7" in out


def test_a_second_signal_stops_immediately(start: Start) -> None:
    run = start("ignores-drain", "ignores-term")
    run.process.terminate()
    assert run.read_line().startswith("stopping")
    run.process.terminate()
    out = run.wait_exit(1)
    assert "did not stop" not in out
    assert "stopped immediately" in out


def test_a_signal_while_loading_exits_with_zero(start: Start) -> None:
    run = start("hangs-loading", "obeys", ready=False)
    run.process.send_signal(signal.SIGINT)
    out = run.wait_exit(0)
    assert "stopping" not in out


def test_a_killed_engine_stops_the_server_and_the_cause_is_reported(start: Start) -> None:
    run = start("grandchild", "obeys")
    assert len(session_members(run.engine)) == 2
    killed = time.monotonic()
    os.kill(run.engine, signal.SIGKILL)
    out = run.wait_exit(1)
    assert time.monotonic() - killed >= 0.3
    assert out.splitlines()[-1].startswith("error: shutting down: engine was killed by SIGKILL")
    # A parent takes the last line of stderr for the reason.
    assert run.errors.splitlines()[-1].startswith("error: shutting down: engine was killed by SIGKILL")


def test_an_engine_that_cannot_load_stops_the_server_and_its_error_is_quoted(start: Start) -> None:
    out = start("dies-loading", "obeys", ready=False, copies=2).wait_exit(1)
    assert "ended with exit code 3: ValueError: the file model.safetensors is cut short" in out
    assert "ready" not in out.splitlines()
    assert "restarting" not in out


def test_the_failure_on_the_status_board_is_reported(start: Start) -> None:
    out = start("reports-failure", "obeys", ready=False).wait_exit(1)
    assert "the engine failed: rank 0: no memory for the cache" in out


def test_the_engine_stops_when_the_web_server_exits(start: Start) -> None:
    out = start("obeys", "dies", ready=False).wait_exit(1)
    assert "web server ended with exit code 4: cannot import the application" in out


def test_loading_times_out(start: Start) -> None:
    out = start("hangs-loading", "obeys", "0.5", ready=False).wait_exit(1)
    assert "not ready within 0.5 s (option.model_loading_timeout)" in out


def test_the_web_server_has_a_lower_priority_and_no_process_outlives_a_killed_supervisor(
    start: Start,
) -> None:
    run = start("obeys", "ignores-term")
    engine = os.getpriority(os.PRIO_PROCESS, run.engine)
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, run.web) == engine + 5)  # it may still be starting
    run.process.kill()
    run.wait_exit(-signal.SIGKILL)


def test_process_1_of_a_container_reaps_orphans(tmp_path: Path) -> None:
    require(NEW_PIDS)
    result = subprocess.run(
        [*NEW_PIDS, sys.executable, str(PROGRAM), str(tmp_path), "leaves-orphans", "obeys"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=child_environment({"END": "60"}),
    )
    assert result.returncode == 1, result.stderr
    # Reaping orphans does not lose the exit code of the engine.
    assert "engine ended with exit code 3: left: []" in result.stderr


def test_a_killed_copy_is_restarted_with_the_settings_of_the_others(start: Start) -> None:
    run = start("obeys", "obeys", copies=2)
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
    for copy in ("copy1", "copy2"):
        assert StatusBoard.open(run.folder / copy / "status").read().state is EngineState.READY
    assert (run.folder / "copy1" / "seqs").read_text() == "7"
    os.kill(run.restarted_engine(), signal.SIGKILL)
    assert "restarting copy1 in 0.2 s" in run.read_line()
    run.process.terminate()  # before the restart
    out = run.wait_exit(0)
    assert out.splitlines()[-1] == "stopped"


def test_a_killed_copy_whose_engine_has_no_scheduler_is_restarted_without_a_warning(start: Start) -> None:
    run = start("no-scheduler", "obeys", copies=2)
    os.kill(run.engine, signal.SIGKILL)
    assert "restarting copy1 in 0.1 s" in run.read_line()
    assert run.read_line() == "copy1 is serving again"
    run.process.terminate()
    run.wait_exit(0)


def test_a_copy_that_fails_three_times_in_a_row_stops_the_server(start: Start) -> None:
    run = start("obeys", "obeys", copies=2)
    os.kill(run.engine, signal.SIGKILL)
    for delay in ("0.1", "0.2"):
        assert f"in {delay} s" in run.read_line()
        assert run.read_line() == "copy1 is serving again"
        os.kill(run.restarted_engine(), signal.SIGKILL)
    out = run.wait_exit(1)
    assert (
        "shutting down: copy1 keeps failing and is not restarted; last failure: copy1 was killed by SIGKILL"
        in out
    )
