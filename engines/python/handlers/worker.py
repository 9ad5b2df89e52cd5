"""`python -m engines.python.handlers.worker`: a process that runs a user's handler.

The dispatcher starts it with one end of a socket pair, and kills it. The handler has the process to itself: its folder
is the working directory, and `djl_python` can be imported.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from engines.config import HandlerEngineConfig
from engines.invocations import Invocation, InvocationOutput
from engines.process import die_with_parent, process_age
from engines.python.handlers.messages import Add, Answered, CallDone, RunBatch, ToWorker
from engines.python.link import Link, LinkClosed
from engines.python.messages import CannotLoad, Forget, Ready

logger = logging.getLogger(__name__)

COMPAT = Path(__file__).parents[1] / "compat"
"""The folder of the package `djl_python`."""


def main(argv: list[str] | None = None) -> int:
    """Serve the dispatcher until it goes; return the exit code."""
    arguments = _parser().parse_args(argv)
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s handler %(levelname)s %(message)s")
    link = Link(Connection(arguments.socket), msgspec.msgpack.Decoder(ToWorker))
    config = HandlerEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    sys.path.insert(0, str(COMPAT))
    try:
        _serve(config, link)
    except LinkClosed:
        logger.info("the dispatcher is gone")
    except Exception as error:  # the process edge: the cause must reach the dispatcher before we end
        logger.exception("the handler could not be loaded")
        link.send(
            CannotLoad(f"{config.handler.file}: {type(error).__name__}: {' '.join(str(error).split())}")
        )
        return 1
    return 0


def _serve(config: HandlerEngineConfig, link: Link[ToWorker]) -> None:
    """Load the handler, and call it until the dispatcher goes.

    Raises: `LinkClosed`; whatever keeps the handler from loading.
    """
    from engines.python.handlers import answers, async_calls  # these import djl_python
    from engines.python.handlers.calls import Calls, load_input
    from engines.python.handlers.entry import AsyncHandler, find_handler, load_module

    folder = Path(config.model.path)
    os.chdir(folder)
    # Each worker sees its own GPUs only, so they have the same numbers in all of them.
    device_id = "0" if config.parallel.device == "cuda" else "-1"
    properties = {**config.handler.properties, "model_dir": str(folder), "device_id": device_id}
    imported = process_age()
    module = load_module(Path(config.handler.file), folder)
    handler = find_handler(module, config.handler.function, properties)
    takes_many = isinstance(handler, AsyncHandler)

    def report_ready() -> None:
        seconds = {"imports": imported, "handler": process_age() - imported}
        link.send(Ready(config.parallel.device, seconds, takes_many))

    if isinstance(handler, AsyncHandler):
        asyncio.run(async_calls.serve(handler, properties, link, report_ready))
        return
    answers.check_load(handler(load_input(properties)))
    report_ready()

    def deliver(piece: InvocationOutput) -> Collection[str]:
        link.send(Answered([piece]))
        forgotten = []
        try:
            while (message := link.receive(0.0)) is not None:
                if isinstance(message, Forget):
                    forgotten.append(message.request_id)
        except LinkClosed:
            raise SystemExit(0) from None  # not an `Exception`: a failed call must not swallow it
        return forgotten

    calls = Calls(handler, deliver)
    batch: list[Invocation] = []
    while True:
        message = link.receive(None)
        if isinstance(message, Add):
            batch.append(message.invocation)
        elif isinstance(message, RunBatch):
            answered = calls.run(batch)
            link.send(CallDone([invocation.id for invocation in batch], failed=not answered))
            batch = []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="HandlerEngineConfig as JSON")
    parser.add_argument(
        "--socket", type=int, required=True, help="number of the open socket to the dispatcher"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
