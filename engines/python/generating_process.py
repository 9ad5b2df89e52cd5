"""The dispatcher's side of the generating process."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from engines.core import Request
from engines.python.messages import FromGenerator, Run
from engines.python.worker_process import WorkerProcess

_MODULE = "engines.python.worker"


class GeneratingProcess(WorkerProcess[FromGenerator]):
    """Runs batches of requests, one at a time."""

    def __init__(self, config: Path, status: Path) -> None:
        """Start the process. config: file with the `PythonEngineConfig` as JSON; status: file of the status board."""
        arguments = ["--config", str(config), "--status", str(status)]
        command = [sys.executable, "-P", "-m", "engines.start", _MODULE, *arguments]
        super().__init__("the generating process", command, msgspec.msgpack.Decoder(FromGenerator))

    def run(self, requests: list[Request]) -> None:
        """Start a batch. The process reports its end with a `BatchDone`."""
        self.send(Run(requests))
