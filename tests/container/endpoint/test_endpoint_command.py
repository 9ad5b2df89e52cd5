"""`lmi endpoint` as a process whose output nobody reads."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from container.run.local_server import HOST, free_port
from tests.support.paths import child_environment
from tests.support.waiting import wait_until


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), urlopen(f"http://{HOST}:{port}/metrics.json"):
        return True
    return False


def test_it_serves_until_it_is_stopped_although_the_reader_of_its_output_has_left(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "container", "endpoint", "--port", str(port), "--folder", str(tmp_path)]
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, env=child_environment()) as process:
        os.close(write)
        wait_until(lambda: answers(port) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        assert process.communicate() == (None, b"")
    assert process.returncode == 0
