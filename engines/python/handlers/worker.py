"""`python -m engines.python.handlers.worker`: a process that runs a user's handler.

The handler has the process to itself. The model folder is the working directory, and `djl_python` can be imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from engines.config import HandlerEngineConfig
from engines.process import die_with_parent, outlive_sigterm, process_age
from engines.python.handlers.djl_modules import IF_MISSING
from engines.python.handlers.messages import ToWorker
from engines.python.link import Link
from engines.python.messages import Ready
from engines.python.worker_main import Serve, run_worker

COMPAT = Path(__file__).parents[1] / "compat"
"""The folder of the package `djl_python`."""


def main(argv: list[str] | None = None) -> int:
    """Serve the dispatcher until it exits; return the exit code."""
    die_with_parent()
    outlive_sigterm()
    sys.path.insert(0, str(COMPAT))
    return run_worker("handler", ToWorker, _load, argv)


def _load(arguments: argparse.Namespace, link: Link[ToWorker]) -> Serve:
    """Load the handler, report it as ready, and return the serving loop. Raises: any error of loading."""
    from engines.python.handlers.async_calls import AsyncCalls  # these modules import djl_python
    from engines.python.handlers.calls import Calls
    from engines.python.handlers.entry import AsyncHandler, find_handler, load_module
    from engines.python.handlers.formatters import Formatters
    from engines.python.handlers.stages import Stages

    imported = process_age()
    config = HandlerEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
    folder = Path(config.model.path)
    os.chdir(folder)
    # Each worker sees only its own GPUs, so its first GPU is always number 0.
    device_id = "0" if config.parallel.device == "cuda" else "-1"
    properties = {**config.handler.properties, "model_dir": str(folder), "device_id": device_id}
    try:
        module = load_module(Path(config.handler.file), folder, config.handler.module)
        handler = find_handler(module, config.handler.function, properties)
        calls = (
            AsyncCalls(handler, link, properties)
            if isinstance(handler, AsyncHandler)
            else Calls(handler, link, properties)
        )
        calls.load()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; {IF_MISSING}") from error
    seconds = {"imports": imported, "handler": process_age() - imported}
    is_async = isinstance(handler, AsyncHandler)
    takes_batches = not isinstance(handler, AsyncHandler | Stages | Formatters)
    link.send(Ready(config.parallel.device, seconds, is_async, takes_batches))
    return calls.serve


if __name__ == "__main__":
    sys.exit(main())
