"""Child processes: finding them, their output, and signals that they do not get."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.run.processes import Child, process_tree, session_members
from tests.support.paths import child_environment
from tests.support.waiting import wait_until

_CUT_NAME = """
import ctypes, time
ctypes.CDLL(None).prctl(15, "сервермодели".encode())  # PR_SET_NAME
print(flush=True)
time.sleep(600)
"""
PROGRESS = "import sys, time; sys.stderr.write('x\\r' * (1 << 19)); sys.stderr.flush(); time.sleep(600)"


def test_stderr_without_newlines_is_copied_while_the_child_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as stream:
        child = Child.start("child", [sys.executable, "-c", PROGRESS], os.environ, log=stream)
        try:
            wait_until(lambda: log.stat().st_size >= 900 << 10)
            assert child.poll() is None
        finally:
            child.kill_all()
            child.last_lines()  # waits until everything is copied


def test_a_child_is_not_stopped_by_a_reader_that_hangs(tmp_path: Path) -> None:
    read, write = os.pipe()
    program = "import sys; sys.stderr.write(('x' * 99 + '\\n') * 10_000)"
    with open(read, "rb"), open(write, "wb", buffering=0) as log:
        child = Child.start("child", [sys.executable, "-c", program], os.environ, log=log)
        try:
            assert child.wait(60) == 0
            assert child.last_lines()[-1] == "x" * 99
        finally:
            child.kill_all()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_child_can_print_when_the_output_of_its_parent_cannot_be_written(name: str) -> None:
    program = f"import sys; print('x', file=sys.{name}, flush=True); sys.exit(7)"
    start = f"Child.start('child', [sys.executable, '-c', {program!r}], os.environ)"
    parent = f"import os, sys; from container.run.processes import Child; os._exit({start}.wait(60))"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", parent], env=child_environment(), check=False, **{name: full}
        )
    assert done.returncode == 7


def test_both_outputs_of_a_child_are_copied_and_only_stderr_explains_its_death(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = "import sys; print('note', file=sys.stderr); print('printed'); sys.exit(7)"
    child = Child.start("child", [sys.executable, "-c", program], os.environ)
    child.wait(60)
    assert child.death() == "child ended with exit code 7: note"
    assert capfd.readouterr() == ("printed\n", "note\n")


def test_a_child_without_threads_for_its_output_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    started = subprocess.Popen.__init__
    processes: list[subprocess.Popen[bytes]] = []

    def start(process: subprocess.Popen[bytes], *arguments: object, **options: object) -> None:
        processes.append(process)
        started(process, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess.Popen, "__init__", start)
    with pytest.raises(OSError, match="can't start new thread"):
        Child.start("child", ["sleep", "600"], child_environment())
    (process,) = processes
    assert process.returncode == -signal.SIGKILL


@pytest.fixture
def cut_name() -> Iterator[int]:
    """The PID of a process whose name the kernel cuts within a character, after 15 bytes."""
    with subprocess.Popen([sys.executable, "-c", _CUT_NAME], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_the_name_of_a_process_may_be_cut_within_a_character(cut_name: int) -> None:
    assert {os.getpid(), cut_name} <= session_members(os.getsid(0)) & process_tree(os.getpid())


def test_a_blocked_signal_does_not_reach_a_handler() -> None:
    """As that of mpirun, which would kill its ranks."""
    program = "import os, signal\nsignal.signal(15, lambda *_: os._exit(5))\nos.kill(os.getpid(), 15)\n"
    command = [sys.executable, "-c", program]
    assert Child.start("child", command, os.environ).wait(60) == 5
    assert Child.start("child", command, os.environ, blocked=signal.SIGTERM).wait(60) == 0
