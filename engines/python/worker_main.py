"""The life of a dispatcher's child process: load, report success or the cause of failure, serve the dispatcher.

The dispatcher starts the child with one end of a socket pair, and stops it by killing it.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from engines.python.link import Link, LinkClosed
from engines.python.messages import CannotLoad, Forget

logger = logging.getLogger(__name__)

Serve = Callable[[], None]
"""Serving loop of a worker. Raises `LinkClosed` when the dispatcher is gone."""


def run_worker(
    name: str, incoming: Any, load: Callable[[argparse.Namespace, Link[Any]], Serve], argv: list[str] | None
) -> int:
    """Run a worker until the dispatcher exits; return the exit code.

    Args:
        name: the worker's name in the log.
        incoming: type of the dispatcher's messages.
        load: loads the model or handler, sends `Ready`, and returns the serving loop. May raise anything.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s")
    link: Link[Any] = Link(Connection(arguments.socket), msgspec.msgpack.Decoder(incoming))
    # The dispatcher detects our exit by the closed socket, so no process that the handler starts may keep it open.
    os.set_inheritable(arguments.socket, False)
    os.register_at_fork(after_in_child=link.close)
    try:
        serve = load(arguments, link)
    except Exception as error:  # top level: the cause must reach the dispatcher before we exit
        logger.exception("loading failed")
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        # A message may quote a file name that is not UTF-8.
        link.send(CannotLoad(cause.encode(errors="backslashreplace").decode()))
        return 1
    try:
        serve()
    except LinkClosed:
        logger.info("the dispatcher closed the connection")
    return 0


def receive_forgotten_ids(link: Link[Any]) -> list[str]:
    """Return the ids of running requests that are no longer wanted. Exits the process if the dispatcher is gone."""
    found = []
    try:
        while (message := link.receive(0.0)) is not None:
            if isinstance(message, Forget):
                found.append(message.request_id)
    except LinkClosed:
        raise SystemExit(0) from None  # not an `Exception`: a failed call must not catch it
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the engine's configuration as JSON")
    parser.add_argument("--status", type=Path, help="status board, for heartbeats")
    parser.add_argument(
        "--socket", type=int, required=True, help="file descriptor of the socket to the dispatcher"
    )
    return parser
