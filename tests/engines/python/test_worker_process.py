"""Worker processes that start child processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from engines.python.messages import CannotLoad, Ready
from engines.python.worker_process import WorkerProcess, WorkerProcessEnded
from tests.support import processes

_WAIT_SECONDS = 60.0
_PROGRAM = """
import os, subprocess, sys, time
from engines.python.messages import Ready
from engines.python.worker_main import run_worker

def load(arguments, link):
    if sys.argv[1] == "fail":
        raise ValueError("no file " + os.fsdecode(b"\\xff.bin"))
    if sys.argv[1] == "fork":
        if not (child := os.fork()):
            time.sleep(3600)
    else:
        child = subprocess.Popen(["sleep", "3600"], close_fds=False).pid
    link.send(Ready(f"{os.getpid()} {child}", {}))
    return lambda: link.receive(None)

run_worker("test", dict, load, sys.argv[2:])
"""

Started = tuple[WorkerProcess[Ready], psutil.Process, psutil.Process]


@pytest.fixture(params=["fork", "subprocess"])
def started(request: pytest.FixtureRequest) -> Iterator[Started]:
    """A worker, its process, and the child of that process."""
    command = [sys.executable, "-c", _PROGRAM, request.param, "--config", str(Path("any"))]
    worker = WorkerProcess("test", command, msgspec.msgpack.Decoder(Ready))
    own, child = (psutil.Process(int(pid)) for pid in next(worker.receive(_WAIT_SECONDS)).device.split())
    yield worker, own, child
    worker.close()
    processes.kill([own, child])


def test_child_processes_of_a_worker_are_killed_with_it(started: Started) -> None:
    worker, own, child = started
    worker.kill()
    assert processes.wait_exited([own, child], _WAIT_SECONDS) == []


def test_the_death_of_a_worker_is_noticed_while_its_children_live(started: Started) -> None:
    worker, own, child = started
    own.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerProcessEnded, match="SIGKILL"):
        next(worker.receive(_WAIT_SECONDS))
    assert child.is_running()
    worker.restart()
    assert processes.wait_exited([child], _WAIT_SECONDS) == []


def test_children_of_a_worker_are_in_the_session_that_the_supervisor_kills(started: Started) -> None:
    _, own, child = started
    assert os.getsid(own.pid) == os.getsid(child.pid) == os.getsid(0)


def test_a_failed_load_is_reported_even_if_its_message_is_not_utf_8() -> None:
    command = [sys.executable, "-c", _PROGRAM, "fail", "--config", "any"]
    worker = WorkerProcess("test", command, msgspec.msgpack.Decoder(Ready | CannotLoad))
    try:
        assert next(worker.receive(_WAIT_SECONDS)) == CannotLoad(r"ValueError: no file \udcff.bin")
    finally:
        worker.close()
