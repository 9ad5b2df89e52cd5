"""The router process: `gunicorn "container.multi_model.router:make_router('/path/router.json')"`."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from pathlib import Path

from flask import Flask

from container.multi_model.app import make_app
from container.multi_model.config import RouterConfig
from container.multi_model.errors import NoMemory
from container.multi_model.manager import ModelManager
from container.multi_model.memory import MemoryAccount, Room, predict_need
from container.multi_model.names import MULTI_MODEL
from container.multi_model.served_model import MemoryNeed
from container.run import launch
from container.run.local_server import LocalServer, free_port, second_ports, serve_command

_PLATFORM_LOADING_SECONDS = 360.0
"""How long SageMaker waits for a model to load."""


def make_router(config_path: str) -> Flask:
    """Create the application inside the only worker, the parent process of the models' servers.

    config_path: a JSON file written by `RouterConfig.to_json`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = RouterConfig.from_json(Path(config_path).read_text(encoding="utf-8"))
    environ = child_environment(launch.environment())
    ports = second_ports(environ)

    def predict(folder: Path, room: Room) -> MemoryNeed:
        return predict_need(folder, environ, room.machine, config.lenient, config.allow_remote_code)

    def start(name: str, folder: Path, need: MemoryNeed) -> LocalServer:
        flags = ["--lenient"] * config.lenient + ["--allow-remote-code"] * config.allow_remote_code
        kv_cache = {"OPTION_KV_CACHE_GB": need.kv_cache_gb} if need.kv_cache_gb else {}
        command = [*serve_command(folder), *flags]
        path = environ.get(launch.STEP_TRACE)
        trace = {launch.STEP_TRACE: own_trace(path, name)} if path else {}
        taken = {other.server.port for other in manager.models() if other.server is not None}
        try:
            port = free_port(ports, taken)
        except OSError as error:
            raise NoMemory(f"cannot load another model: {error.strerror}") from error
        return LocalServer.start("the model's server", command, {**environ, **kv_cache, **trace}, port=port)

    folders = {name: Path(folder) for name, folder in config.folders.items()}
    account = MemoryAccount(environ, config.memory_limit, config.memory_reserved)
    limit = math.inf if folders else _PLATFORM_LOADING_SECONDS
    manager = ModelManager(folders, account, predict, start, limit)
    if folders:
        threading.Thread(target=manager.load_all, name="load-all", daemon=True).start()
    threading.Thread(target=manager.watch, name="watch-models", daemon=True).start()
    root = None if folders else Path(config.models_root)
    return make_app(manager, config.max_request_size, root, config.throttle_error_http_code)


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the models' servers, each of which serves one model on its own port."""
    return {name: value for name, value in environ.items() if name not in (MULTI_MODEL, launch.BIND_TO_PORT)}


def own_trace(path: str, model: str) -> str:
    """Return the path of a model's own step trace. A path that is not valid is not changed."""
    trace = Path(path)
    return str(trace.with_stem(f"{trace.stem}-{model}")) if trace.suffix == ".jsonl" else path
