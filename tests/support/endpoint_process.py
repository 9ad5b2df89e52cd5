"""`lmi endpoint` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import REPO_ROOT, child_environment

_SECONDS = 240


@dataclass(slots=True)
class EndpointProcess:
    """State of an `lmi endpoint` process."""

    url: str
    exit_code: int | None = None
    output: list[str] = field(default_factory=list)
    """Printed text. Complete once the process has exited."""


@contextmanager
def running_endpoint(state: Path, *arguments: str, until: str = "") -> Iterator[EndpointProcess]:
    """Start `lmi endpoint`, wait until it prints its address and `until`, and stop it with SIGTERM after the block.

    Raises:
        AssertionError: the process exited, or an endpoint in its file failed.
    """
    command = [sys.executable, "-m", "container", "endpoint", *arguments, "--port", "0"]
    environment = child_environment({"PYTHONUNBUFFERED": "1"})
    with subprocess.Popen(
        [*command, "--folder", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPO_ROOT,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            printed = ""
            while until not in printed or (found := re.search(r"endpoint_url=(\S+)\n", printed)) is None:
                line = process.stdout.readline()
                assert line, printed
                printed += line
                assert "Failed" not in line, line
            endpoint = EndpointProcess(found[1], output=[printed])
            yield endpoint
            process.send_signal(signal.SIGTERM)
            endpoint.output.append(process.communicate(timeout=_SECONDS)[0])
            endpoint.exit_code = process.returncode
        finally:
            process.kill()
