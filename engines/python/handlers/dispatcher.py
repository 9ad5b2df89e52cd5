"""The process that batches requests for a user's handler, run by `engines.start`.

Started by the supervisor. Starts and restarts the workers. Runs no user code.
"""

from __future__ import annotations

import argparse
import time

from engines.config import HandlerEngineConfig
from engines.core import EngineInfo
from engines.engine_socket import EngineSocket
from engines.health import StatusBoard
from engines.python.dispatcher import run
from engines.python.handlers.dispatch import HandlerDispatch
from engines.python.handlers.slot import HandlerProcess


def main(argv: list[str] | None = None) -> int:
    """Run the dispatcher; return the exit code."""
    return run(_serve, argv)


def _serve(arguments: argparse.Namespace, board: StatusBoard) -> None:
    """Serve until the dispatcher is drained. Raises `EngineFailed`."""
    config = HandlerEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))

    def start_worker(number: int) -> HandlerProcess:
        return HandlerProcess(config.handler, arguments.config, number)

    socket = EngineSocket(arguments.address)
    try:
        HandlerDispatch(config, _info(config), start_worker, socket, board, time.monotonic).serve()
    finally:
        socket.close()


def _info(config: HandlerEngineConfig) -> EngineInfo:
    return EngineInfo(
        model=config.model.name,
        engine=config.engine,
        world_size=config.handler.min_workers,
        device=config.parallel.device,
        dtype="",
        max_num_seqs=config.batching.batch_size,
    )
