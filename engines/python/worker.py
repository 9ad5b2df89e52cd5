"""The generating process of engine=Python, run by `engines.start`. Loads the model and runs batches.

The process keeps no state between batches.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Collection

import torch
import transformers

from engines.config import PythonEngineConfig
from engines.core import RequestOutput
from engines.health import IDLE_BEAT_SECONDS, StatusBoard
from engines.process import process_age
from engines.python.batch_runner import BatchRunner
from engines.python.heartbeat_hook import HeartbeatHook, clamp_positions
from engines.python.link import Link
from engines.python.messages import GENERATOR, BatchDone, CallStarted, Ready, Run, StepDone, ToGenerator
from engines.python.model import load_model
from engines.python.worker_main import Serve, receive_forgotten_ids, run_worker
from lmi_kernels.cpu import set_num_threads

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Serve the dispatcher until it exits; return the exit code."""
    return run_worker("engine generator", ToGenerator, _load, argv)


def _load(arguments: argparse.Namespace, link: Link[ToGenerator]) -> Serve:
    """Load the model, report it as ready, and return the serving loop. Raises: any error of loading or running it."""
    imported = process_age()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    board = StatusBoard.open(arguments.status)
    config = PythonEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    set_num_threads(config.parallel.threads_per_rank, native=False)
    model = load_model(config)
    loaded = process_age()
    heartbeat = HeartbeatHook(lambda: board.beat(GENERATOR), time.monotonic)
    layers = heartbeat.attach(model.module)
    clamp_positions(model.module, config.model.max_model_len)
    runner = BatchRunner(model, heartbeat, config.batching.batch_timeout)
    seconds = {"imports": imported, "weights": loaded - imported, "warm-up": process_age() - loaded}
    logger.info("%s with %d layers is loaded", type(model.module).__name__, layers)
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"
    board.beat(GENERATOR)
    link.send(Ready(name, seconds))
    return lambda: _serve(runner, link, board)


def _serve(runner: BatchRunner, link: Link[ToGenerator], board: StatusBoard) -> None:
    """Run batches until the dispatcher exits. Raises `LinkClosed`."""

    def deliver(outputs: list[RequestOutput]) -> Collection[str]:
        if outputs:
            link.send(StepDone(outputs))
        return receive_forgotten_ids(link)

    def call_started(request_ids: list[str]) -> None:
        link.send(CallStarted(request_ids))

    while True:
        board.beat(GENERATOR)
        message = link.receive(IDLE_BEAT_SECONDS)
        # A `Forget` that arrives here is for a batch that has ended.
        if isinstance(message, Run):
            link.send(BatchDone(runner.run(message.requests, deliver, call_started)))
