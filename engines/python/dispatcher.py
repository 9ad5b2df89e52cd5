"""The process of engine=Python that batches requests and forwards outputs, run by `engines.start`.

Started by the supervisor. Starts and restarts the generating process. Does not import torch. Exits with 0 after a
drain, otherwise with 1 and the cause on stderr and on the status board.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable

from engines.config import PythonEngineConfig
from engines.core import EngineInfo, Request
from engines.engine_socket import EngineSocket
from engines.health import IDLE_BEAT_SECONDS, EngineState, StatusBoard
from engines.process import engine_arguments, process_age
from engines.python.batcher import DynamicBatcher
from engines.python.dispatch import Dispatch
from engines.python.generating_process import GeneratingProcess
from engines.python.messages import DISPATCHER, CannotLoad, Ready
from engines.python.request_loop import EngineFailed
from engines.python.worker_process import WorkerProcessEnded

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Run the dispatcher; return the exit code."""
    return run(_serve, argv)


def run(serve: Callable[[argparse.Namespace, StatusBoard], None], argv: list[str] | None = None) -> int:
    """Run a dispatcher until it is drained or fails. Record the end on the status board; return the exit code."""
    arguments = engine_arguments(__doc__, argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine dispatcher %(levelname)s %(message)s")
    board = StatusBoard.open(arguments.status)
    try:
        serve(arguments, board)
    except EngineFailed as failure:
        return _fail(board, str(failure))
    except Exception as error:  # top level: the cause must reach the board before the process exits
        logger.exception("the dispatcher failed")
        return _fail(board, f"{type(error).__name__}: {error}")
    board.set_state(EngineState.STOPPED)
    return 0


def _fail(board: StatusBoard, cause: str) -> int:
    board.set_state(EngineState.FAILED, cause)
    sys.stderr.write(f"{cause}\n")
    return 1


def _serve(arguments: argparse.Namespace, board: StatusBoard) -> None:
    config = PythonEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    started = time.monotonic()
    before = process_age()
    generator = GeneratingProcess(arguments.config, arguments.status)
    try:
        ready = _first_ready(generator, board, config.model.path)
        info = _info(config, ready, {"dispatcher": before, **ready.load_seconds})
        batcher: DynamicBatcher[Request] = DynamicBatcher(config.batching)
        load_seconds = time.monotonic() - started
        logger.info("ready; seconds by part: %s", {k: round(v, 1) for k, v in info.load_seconds.items()})
        socket = EngineSocket(arguments.address)
        try:
            Dispatch(config, info, batcher, generator, socket, board, load_seconds, time.monotonic).serve()
        finally:
            socket.close()
    finally:
        generator.close()


def _first_ready(generator: GeneratingProcess, board: StatusBoard, model_path: str) -> Ready:
    """Wait until the model is loaded. The supervisor enforces a time limit. Raises `EngineFailed`."""
    while True:
        board.beat(DISPATCHER)
        try:
            for message in generator.receive(IDLE_BEAT_SECONDS):
                if isinstance(message, Ready):
                    return message
                if isinstance(message, CannotLoad):
                    raise EngineFailed(f"{model_path}: {message.cause}")
        except WorkerProcessEnded as end:
            raise EngineFailed(f"the generating process ended while loading the model: {end}") from None


def _info(config: PythonEngineConfig, ready: Ready, load_seconds: dict[str, float]) -> EngineInfo:
    return EngineInfo(
        model=config.model.name,
        engine=config.engine,
        world_size=config.parallel.tp_size if config.parallel.device == "cuda" else 1,
        device=ready.device,
        dtype=config.model.dtype,
        max_num_seqs=config.batching.batch_size,
        max_model_len=config.model.max_model_len,
        load_seconds=load_seconds,
    )
