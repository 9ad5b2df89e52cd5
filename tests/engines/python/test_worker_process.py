"""Worker processes that start child processes."""

from __future__ import annotations

import os
import signal
import sys

import msgspec
import psutil
import pytest

from engines.python import worker_process
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
        raise ValueError("no\\nfile " + os.fsdecode(b"\\xff.bin"))
    if sys.argv[1] == "many":
        for number in range(100):
            link.send(Ready(str(number), {}))
        os._exit(0)
    if sys.argv[1] == "fork":
        if not (child := os.fork()):
            time.sleep(3600)
    else:
        child = subprocess.Popen(["sleep", "3600"], close_fds=False).pid
    link.send(Ready(f"{os.getpid()} {child}", {}))
    return lambda: link.receive(None)

run_worker("test", dict, load, sys.argv[2:])
"""


@pytest.mark.parametrize("how", ["fork", "subprocess"])
def test_children_of_a_worker_end_with_it_and_do_not_hide_its_death(how: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, how, "--config", "any"]
    worker = WorkerProcess("test", command, msgspec.msgpack.Decoder(Ready))
    started: list[psutil.Process] = []

    def wait_ready() -> tuple[psutil.Process, psutil.Process]:
        """Return the worker's process and its child."""
        own, child = (psutil.Process(int(pid)) for pid in next(worker.receive(_WAIT_SECONDS)).device.split())
        started.extend((own, child))
        return own, child

    try:
        own, child = wait_ready()
        assert os.getsid(own.pid) == os.getsid(child.pid) == os.getsid(0), (
            "the supervisor kills by POSIX session"
        )
        own.send_signal(signal.SIGKILL)
        with pytest.raises(WorkerProcessEnded, match="SIGKILL"):
            next(worker.receive(_WAIT_SECONDS))
        assert child.is_running()
        worker.restart()
        assert processes.wait_exited([child], _WAIT_SECONDS) == []
        own, child = wait_ready()
        worker.kill()
        assert processes.wait_exited([own, child], _WAIT_SECONDS) == []
    finally:
        worker.close()
        processes.kill(started)


def test_a_failed_load_is_reported_on_one_line_even_if_its_message_is_not_utf_8() -> None:
    command = [sys.executable, "-c", _PROGRAM, "fail", "--config", "any"]
    worker = WorkerProcess("test", command, msgspec.msgpack.Decoder(Ready | CannotLoad))
    try:
        assert next(worker.receive(_WAIT_SECONDS)) == CannotLoad(r"ValueError: no file \udcff.bin")
    finally:
        worker.close()


def test_many_messages_leave_the_dispatcher_time_for_other_work() -> None:
    command = [sys.executable, "-c", _PROGRAM, "many", "--config", "any"]
    before = psutil.Process().children()
    worker = WorkerProcess("test", command, msgspec.msgpack.Decoder(Ready))
    try:
        (child,) = (each for each in psutil.Process().children() if each not in before)
        assert processes.wait_exited([child], _WAIT_SECONDS) == []
        received: list[str] = []

        def receive_all() -> None:
            while True:
                for count, ready in enumerate(worker.receive(0.0), 1):
                    assert count < 100
                    received.append(ready.device)

        with pytest.raises(WorkerProcessEnded):
            receive_all()
        assert received == [str(number) for number in range(100)]
    finally:
        worker.close()


def test_kill_does_not_wait_for_a_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    worker = WorkerProcess("test", sleep, msgspec.msgpack.Decoder(Ready))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(worker_process, "_KILL_SECONDS", 0.01)
            patch.setattr(os, "killpg", lambda pid, number: None)  # like a process that waits for a device
            worker.kill()
    finally:
        worker.close()


def test_a_process_without_a_thread_for_its_messages_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().children()
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    worker = WorkerProcess("test", sleep, msgspec.msgpack.Decoder(Ready))

    def no_thread(link: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker_process, "Outbox", no_thread)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.restart()
    left = [each for each in psutil.Process().children() if each not in before]
    processes.kill(left)
    assert left == []
