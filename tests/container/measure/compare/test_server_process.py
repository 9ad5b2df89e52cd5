"""A configuration's server as a child process: start-up errors, stop and kill."""

from __future__ import annotations

import dataclasses
import errno
import sys
from pathlib import Path

import psutil
import pytest

from container.measure.compare import server_process
from container.measure.compare.server_process import ServerFailed, ServerProcess, StopTimeouts
from container.run.processes import Child
from tests.container.measure.compare.made_up import make_configuration
from tests.support.paths import child_environment
from tests.support.processes import with_argument
from tests.support.waiting import wait_until


def test_a_start_up_failure_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("engine=MPI\noption.tensor_paralel_degree=1\n")
    config = dataclasses.replace(make_configuration("typo"), path=tmp_path)
    log = tmp_path / "server.log"
    with pytest.raises(ServerFailed) as caught:
        ServerProcess.start(config, log, child_environment())
    text = str(caught.value)
    assert text.startswith("typo: the server exited with code 1 before it was ready")
    assert str(log) in text
    assert "did you mean option.tensor_parallel_degree?" in text


def test_a_server_for_which_nothing_is_left_fails_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError(errno.EADDRINUSE, "no free port found")

    monkeypatch.setattr(server_process, "free_port", refuse)
    config = dataclasses.replace(make_configuration("unlucky"), path=tmp_path)
    with pytest.raises(ServerFailed, match=r"unlucky: the server cannot be started: .*no free port found"):
        ServerProcess.start(config, tmp_path / "server.log", child_environment())


def test_a_server_that_is_killed_while_loading_leaves_no_processes(tmp_path: Path) -> None:
    """The negative timeout expires before loading starts."""
    config = dataclasses.replace(make_configuration("slow"), path=tmp_path, loading_timeout=-60.0)
    (tmp_path / "serving.properties").write_text(f"engine=MPI\noption.model_id={tmp_path}\n")
    with pytest.raises(ServerFailed, match=r"slow: the server was not ready within 0 s"):
        ServerProcess.start(config, tmp_path / "server.log", child_environment())
    wait_until(lambda: find_processes(tmp_path) == [])


def start_program(tmp_path: Path, on_sigterm: str, timeouts: StopTimeouts | None = None) -> ServerProcess:
    """Start a program as a server, and wait until it is up. on_sigterm: the Python code that SIGTERM runs."""
    program = _SIGTERM_HANDLER.format(then=on_sigterm)
    log_path = tmp_path / "server.log"
    log = log_path.open("ab", buffering=0)
    child = Child.start(
        "made-up", [sys.executable, "-c", program, str(tmp_path)], child_environment(), log=log
    )
    wait_until(lambda: "up" in log_path.read_text())
    return ServerProcess(child, 1, log, timeouts or StopTimeouts())


_SIGTERM_HANDLER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: {then})
print('up', flush=True)
while True:
    time.sleep(60)
"""


def test_a_server_that_exits_with_code_0_stops_without_error(tmp_path: Path) -> None:
    server = start_program(tmp_path, "sys.exit(0)")
    memory = server.peak_memory()
    assert memory is not None
    assert memory > 1 << 20
    server.stop()
    server.kill()
    wait_until(lambda: find_processes(tmp_path) == [])


def test_another_exit_code_is_a_failure(tmp_path: Path) -> None:
    server = start_program(tmp_path, "sys.exit('the last word')")
    with pytest.raises(ServerFailed, match=r"made-up: the server exited with code 1(.|\n)*the last word"):
        server.stop()


def test_a_server_that_ignores_sigterm_is_killed_and_reported(tmp_path: Path) -> None:
    server = start_program(tmp_path, "None", StopTimeouts(0.05, 0.05, 0.05))
    with pytest.raises(ServerFailed, match=r"did not exit within 0\.05 s of SIGTERM"):
        server.stop()
    wait_until(lambda: find_processes(tmp_path) == [])


def find_processes(folder: Path) -> list[psutil.Process]:
    """Running processes with this folder in their command line."""
    return with_argument(psutil.process_iter(), lambda argument: str(folder) in argument)
