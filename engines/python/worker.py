"""`python -m engines.python.worker`: the generating process of engine=Python. Loads the model, runs batches.

The dispatcher starts it with one end of a socket pair, and kills it; it keeps nothing between batches.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import torch
import transformers

from engines.config import PythonEngineConfig
from engines.core import RequestOutput
from engines.health import IDLE_BEAT_SECONDS, StatusBoard
from engines.process import die_with_parent, process_age
from engines.python.batch_runner import BatchRunner
from engines.python.link import Link, LinkClosed
from engines.python.messages import (
    GENERATOR,
    BatchDone,
    CannotLoad,
    Forget,
    Ready,
    Run,
    StepDone,
    ToGenerator,
)
from engines.python.model import load_model
from engines.python.pulse import Pulse, keep_positions_inside

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Serve the dispatcher until it goes; return the exit code."""
    arguments = _parser().parse_args(argv)
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine generator %(levelname)s %(message)s")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    board = StatusBoard.open(arguments.status)
    link = Link(Connection(arguments.socket), msgspec.msgpack.Decoder(ToGenerator))
    config = PythonEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    try:
        runner, ready = _load(config, board)
    except Exception as error:  # the process edge: the cause must reach the dispatcher before we end
        logger.exception("the model could not be loaded")
        link.send(CannotLoad(f"{config.model.path}: {type(error).__name__}: {' '.join(str(error).split())}"))
        return 1
    board.beat(GENERATOR)
    link.send(ready)
    try:
        _serve(runner, link, board)
    except LinkClosed:
        logger.info("the dispatcher is gone")
    return 0


def _load(config: PythonEngineConfig, board: StatusBoard) -> tuple[BatchRunner, Ready]:
    """Raises: whatever keeps the model from loading or from computing."""
    imported = process_age()
    torch.set_num_threads(config.parallel.threads_per_rank)
    model = load_model(config)
    loaded = process_age()
    pulse = Pulse(lambda: board.beat(GENERATOR), time.monotonic)
    layers = pulse.attach(model.module)
    keep_positions_inside(model.module, config.model.max_model_len)
    runner = BatchRunner(model, pulse, config.batching.batch_timeout)
    seconds = {"imports": imported, "weights": loaded - imported, "warm-up": process_age() - loaded}
    logger.info("%s with %d layers is loaded", type(model.module).__name__, layers)
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"
    return runner, Ready(name, seconds)


def _serve(runner: BatchRunner, link: Link[ToGenerator], board: StatusBoard) -> None:
    """Raises `LinkClosed` when the dispatcher goes."""

    def deliver(outputs: list[RequestOutput]) -> Collection[str]:
        if outputs:
            link.send(StepDone(outputs))
        forgotten = []
        try:
            while (message := link.receive(0.0)) is not None:
                if isinstance(message, Forget):
                    forgotten.append(message.request_id)
        except LinkClosed:
            raise SystemExit(0) from None  # not an `Exception`: a failed batch must not swallow it
        return forgotten

    while True:
        board.beat(GENERATOR)
        message = link.receive(IDLE_BEAT_SECONDS)
        # A `Forget` that comes now is for a batch that is over.
        if isinstance(message, Run):
            waste = runner.run(message.requests, message.deadline, deliver)
            link.send(BatchDone(waste.prompt_padding, waste.ended_row_tokens))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="PythonEngineConfig as JSON")
    parser.add_argument("--status", type=Path, required=True, help="status board")
    parser.add_argument(
        "--socket", type=int, required=True, help="number of the open socket to the dispatcher"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
