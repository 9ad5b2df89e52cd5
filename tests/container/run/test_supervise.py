"""The supervisor with fake children: exit codes, nothing left behind, and in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from container.run.processes import session_members
from tests.support.namespaces import NEW_PIDS, require

PROGRAM = Path(__file__).with_name("supervised_run.py")
ROOT = Path(__file__).resolve().parents[3]


class Run:
    """One supervised run as a child process."""

    def __init__(self, folder: Path, *arguments: str, burst: float = 0.0, end: float = 60.0) -> None:
        """end: seconds that the engine and the web server are given to stop."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "BURST": str(burst), "END": str(end)},
        )
        words = self.line().split()
        self.engine, self.web = int(words[1]), int(words[2])

    def line(self) -> str:
        """The next line of stdout; empty at its end."""
        return self.process.stdout.readline().strip() if self.process.stdout else ""

    def end(self, timeout: float = 200.0) -> tuple[int, str, float]:
        """(exit code, rest of stdout, seconds that it took)."""
        started = time.monotonic()
        out, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, time.monotonic() - started

    def left(self) -> set[int]:
        """Processes that outlived the supervisor; waits a moment, for death takes one."""
        deadline = time.monotonic() + 60
        while (
            left := session_members(self.engine) | session_members(self.web)
        ) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left


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
        for pid in (*session_members(run.engine), *session_members(run.web)):
            os.kill(pid, signal.SIGKILL)
        run.process.kill()
        run.process.communicate()


def test_sigterm_drains_and_ends_with_zero(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.line() == "ready"
    run.process.terminate()
    code, out, _ = run.end()
    assert (code, run.left()) == (0, set())
    assert "did not stop" not in out
    assert out.splitlines()[-1] == "stopped"


def test_an_engine_that_does_not_drain_is_killed_and_the_end_is_still_clean(
    start: Callable[..., Run],
) -> None:
    run = start("ignores-drain", "ignores-term", end=2.0)
    assert run.line() == "ready"
    run.process.terminate()
    code, out, seconds = run.end()
    assert (code, run.left()) == (0, set())
    assert "did not stop within 2 s" in out
    assert seconds >= 2


def test_an_engine_that_breaks_while_draining_is_no_success(start: Callable[..., Run]) -> None:
    run = start("breaks-in-drain", "obeys")
    assert run.line() == "ready"
    run.process.terminate()
    code, out, _ = run.end()
    assert (code, run.left()) == (1, set())
    assert "engine ended with exit code 7" in out


def test_a_second_signal_ends_at_once(start: Callable[..., Run]) -> None:
    run = start("ignores-drain", "ignores-term")
    assert run.line() == "ready"
    run.process.terminate()
    assert run.line().startswith("stopping")
    run.process.terminate()
    code, out, _ = run.end()
    assert (code, run.left()) == (1, set())
    assert "did not stop" not in out
    assert "stopped at once" in out


def test_a_burst_of_signals_is_one_request_to_stop(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys", burst=60.0)
    assert run.line() == "ready"
    for _ in range(5):
        run.process.terminate()
    code, out, _ = run.end()
    assert (code, run.left()) == (0, set())
    assert out.splitlines()[-1] == "stopped"


def test_sigterm_while_loading_ends_with_zero(start: Callable[..., Run]) -> None:
    run = start("hangs-loading", "obeys")
    run.process.send_signal(signal.SIGINT)
    code, out, _ = run.end()
    assert (code, run.left()) == (0, set())
    assert "stopping" not in out


def test_a_killed_engine_ends_the_server_with_the_cause(start: Callable[..., Run]) -> None:
    run = start("obeys", "obeys")
    assert run.line() == "ready"
    os.kill(run.engine, signal.SIGKILL)
    code, out, seconds = run.end()
    assert (code, run.left()) == (1, set())
    assert out.splitlines()[-1].startswith("error: the server stops: engine ended by SIGKILL")
    assert seconds >= 0.3


def test_what_a_dead_engine_started_goes_with_it(start: Callable[..., Run]) -> None:
    run = start("grandchild", "obeys")
    assert run.line() == "ready"
    assert len(session_members(run.engine)) == 2
    os.kill(run.engine, signal.SIGKILL)
    assert run.end()[0] == 1
    assert run.left() == set()


def test_an_engine_that_cannot_load_is_quoted(start: Callable[..., Run]) -> None:
    code, out, _ = start("dies-loading", "obeys").end()
    assert code == 1
    assert "engine ended with exit code 3: ValueError: the file model.safetensors is cut short" in out
    assert "ready" not in out.splitlines()


def test_the_cause_on_the_board_is_told(start: Callable[..., Run]) -> None:
    code, out, _ = start("reports-failure", "obeys").end()
    assert code == 1
    assert "the engine failed: rank 0: no memory for the cache" in out


def test_a_dead_web_server_ends_the_engine(start: Callable[..., Run]) -> None:
    run = start("obeys", "dies")
    code, out, _ = run.end()
    assert (code, run.left()) == (1, set())
    assert "web server ended with exit code 4: cannot import the application" in out


def test_loading_has_a_time_limit(start: Callable[..., Run]) -> None:
    run = start("hangs-loading", "obeys", "0.5")
    code, out, _ = run.end()
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
    assert os.getpriority(os.PRIO_PROCESS, run.web) == os.getpriority(os.PRIO_PROCESS, run.engine) + 5


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
