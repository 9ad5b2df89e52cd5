"""A program for test_supervise: the real supervisor with a fake engine and a fake web server.

Usage: `python supervised_run.py FOLDER ENGINE_MODE WEB_MODE [LOADING_TIMEOUT]`. It starts itself again as the
fake engine. The environment variable COPIES is the number of engines. Prints a line `pids WEB ENGINE ...`, then
`ready` and the messages of the supervisor. Exits with the supervisor's exit code.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import zmq

from container.progress import LogLines, drop_unwritten
from container.run import supervise
from container.run.control import EngineControl
from container.run.engine_copy import EngineCopy, RestartRule
from container.run.launch import RuntimePaths
from container.run.processes import Child
from container.run.stop_signals import StopSignals
from container.run.supervise import ShutdownTimes, Supervisor
from engines.core import SchedulerReply, SchedulerSettings
from engines.health import EngineState, StatusBoard
from engines.wire import ConfigureScheduler, Drain, Reply, decode_to_engine, encode

IGNORES_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
WEB = {
    "obeys": "import time; time.sleep(600)",
    "dies": "import sys; print('cannot import the application', file=sys.stderr); sys.exit(4)",
    "ignores-term": IGNORES_TERM,
}
"""Programs of the fake web server, by mode."""


def start_orphan() -> int:
    """Return the pid of a process that exits once process 1 has become its parent."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        pid = os.fork()
        if pid == 0:
            while os.getppid() != 1:
                time.sleep(0.01)
        else:
            os.write(write, str(pid).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    return int(os.read(read, 32))


def fake_engine(folder: Path, mode: str) -> int:
    board = StatusBoard.open(folder / "status")
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(f"ipc://{folder}/engine.sock")
    if mode == "hangs-loading":
        time.sleep(600)
    if mode == "dies-loading":
        print("ValueError: the file model.safetensors is cut short", file=sys.stderr)
        return 3
    if mode == "grandchild":
        subprocess.Popen([sys.executable, "-c", IGNORES_TERM])
    board.set_state(EngineState.READY)
    if mode == "leaves-orphans":
        pids, deadline = [start_orphan() for _ in range(3)], time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        remaining = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        print(f"left: {remaining}", file=sys.stderr)
        return 3
    if mode == "reports-failure":
        board.set_state(EngineState.FAILED, "rank 0: no memory for the cache")
        return 1
    settings = SchedulerSettings(int((folder / "seqs").read_text()), 8, 8, 8)
    while True:
        client, data = socket.recv_multipart()
        message = decode_to_engine(data)
        if isinstance(message, ConfigureScheduler):
            settings = dataclasses.replace(settings, **message.changes)
            (folder / "seqs").write_text(str(settings.max_num_seqs))
            in_force = None if mode == "no-scheduler" else settings
            socket.send_multipart([client, encode(Reply(message.token, SchedulerReply(in_force, {})))])
        if isinstance(message, Drain) and mode != "ignores-drain":
            (folder / "drained").touch()
            board.set_state(EngineState.STOPPED)
            return 7 if mode == "breaks-in-drain" else 0


def main() -> int:
    folder, engine_mode, web_mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if engine_mode == "engine":
        return fake_engine(folder, web_mode)
    end = float(os.environ["END"])
    times = ShutdownTimes(drain=end / 2, engine_end=end, report_errors=0.3, web_end=end)
    loading_timeout = float(sys.argv[4]) if len(sys.argv) > 4 else 200.0
    count = int(os.environ.get("COPIES", "1"))
    # The fake engines send no heartbeats, and a busy machine may delay their replies.
    rule = RestartRule(delay=0.1, long_service=600.0, max_stalled_checks=1_000_000)
    supervise._SETTINGS_SECONDS = 200.0

    def start(paths: RuntimePaths) -> tuple[Child, StatusBoard]:
        paths.folder.mkdir(exist_ok=True)
        paths.clear()
        (paths.folder / "seqs").write_text("1")
        board = paths.new_board(1)
        name = "engine" if count == 1 else paths.folder.name
        return Child.start(
            name, [sys.executable, __file__, str(paths.folder), "engine", engine_mode], os.environ
        ), board

    say = LogLines(sys.stdout).say
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals(float(os.environ.get("BURST", "0"))))
        signals.raising = False
        copies = []
        for paths in RuntimePaths(folder).copies(count):
            control = stack.enter_context(EngineControl(paths.engine_address))
            name = "the engine" if count == 1 else paths.folder.name
            copies.append(EngineCopy(name, partial(start, paths), control, rule))
        web = Child.start("web server", [sys.executable, "-c", WEB[web_mode]], os.environ, nice=5)
        say(" ".join(map(str, ["pids", web.pid, *(copy.child.pid for copy in copies)])))
        supervisor = Supervisor(copies, web, signals, say, folder / "settings.lock", times)
        return supervisor.run(loading_timeout, lambda: say("ready"))


if __name__ == "__main__":
    exit_code = main()
    drop_unwritten(sys.stdout)
    sys.exit(exit_code)
