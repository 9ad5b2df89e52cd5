"""`lmi serve` for several models: listening socket -> router -> shutdown."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from container.errors import BadVariable
from container.models.model_folders import model_folders
from container.multi_model.config import MEMORY_LIMIT, RouterConfig
from container.multi_model.names import MULTI_MODEL, is_multi_model
from container.progress import ProgressView
from container.run import launch
from container.run.launch import RuntimePaths
from container.run.local_server import second_ports
from container.run.processes import Child, reap_orphans
from container.run.runtime_folder import runtime_folder
from container.run.serve import ServeOptions, listen, raise_open_files
from container.run.stop_signals import StopSignals
from lmi_server.config import ServerConfig
from lmi_server.properties import environment, loader
from lmi_server.properties.options import by_name
from lmi_server.values.base import BadValueError

MODELS_ROOT = "LMI_MODELS_DIR"
_DEFAULT_ROOT = "/opt/ml/models"
_RESERVED_MB = 500
_WORKER = "container.multi_model.worker.RouterWorker"
_FILES_OF_CONNECTION = 2
"""Open files of a client's connection: its socket, and that to the model's server while a request is forwarded."""
_POLL_SECONDS = 0.5
_END_SECONDS = 29.5
"""Time for the router to exit before it is killed. It listens until the models' servers have ended."""


def router_config(options: ServeOptions, environ: Mapping[str, str]) -> RouterConfig | None:
    """Return the router's configuration, or None if there is only one model. Raises BadVariable."""
    folders = {} if is_multi_model(environ) else model_folders(options.path, environ)
    if not folders and not is_multi_model(environ):
        return None
    sizes = [_server_setting(environ, "max_request_size", ServerConfig().max_request_size)]
    for folder in folders.values():
        if (loaded := loader.examine(folder, environ, options.lenient).loaded) is not None:
            sizes.append(loaded.config.server.max_request_size)
    return RouterConfig(
        folders={name: str(folder) for name, folder in folders.items()},
        models_root=environ.get(MODELS_ROOT) or _DEFAULT_ROOT,
        lenient=options.lenient,
        allow_remote_code=options.allow_remote_code,
        max_request_size=max(sizes),
        throttle_error_http_code=_server_setting(
            environ, "throttle_error_http_code", ServerConfig().throttle_error_http_code
        ),
        memory_limit=_memory_limit(environ),
        memory_reserved=_server_setting(environ, "reserved_memory_mb", _RESERVED_MB) << 20,
    )


def serve_several(
    config: RouterConfig,
    options: ServeOptions,
    environ: Mapping[str, str],
    view: ProgressView,
    signals: StopSignals,
) -> int:
    """Serve until a stop signal. Returns the exit code.

    Raises: CannotListen, BadVariable; StopRequested before the router is started.
    """
    launch.admin_token_digest(environ)  # refuses an invalid token, as with a single model
    second_ports(environ)  # refuses an invalid range
    with listen(options.host, options.port) as listener, runtime_folder() as folder:
        file = folder / "router.json"
        file.write_text(config.to_json(), encoding="utf-8")
        app = f"container.multi_model.router:make_router({str(file)!r})"
        connections = launch.web_connections(raise_open_files(view), _FILES_OF_CONNECTION)
        command = launch.web_command(app, folder, listener.fileno(), 1, connections)
        command += ["--worker-class", _WORKER]  # overrides gunicorn_conf.py
        env = launch.web_environment(launch.without_admin_token(environ), RuntimePaths(folder), 1)
        signals.raising = False
        router = Child.start("router", command, env, pass_fds=[listener.fileno()])
        host, port = listener.getsockname()[:2]
        listener.close()
        served = f"{len(config.folders)} models of {options.path}: {', '.join(config.folders)}"
        if not config.folders:
            served = f"{MULTI_MODEL}=true: models in {config.models_root}, loaded by POST /models"
        view.say(f"serving {served}; at {launch.base_url(host, port)}")
        return _until_end(router, signals, view)


def _until_end(router: Child, signals: StopSignals, view: ProgressView) -> int:
    while not signals.count:
        signals.wait(_POLL_SECONDS)
        if os.getpid() == 1:
            reap_orphans({router.pid})
        if (cause := router.death()) is not None:
            view.say(f"error: shutting down: {cause}")
            return 1
    view.say("stopping: running requests have 25 s to finish")
    router.terminate()
    deadline = time.monotonic() + _END_SECONDS
    while router.poll() is None and signals.count < 2 and time.monotonic() < deadline:
        signals.wait(min(_POLL_SECONDS, max(deadline - time.monotonic(), 0.0)))
    router.kill_all()
    if signals.count > 1:
        view.say("stopped immediately on a second signal")
        return 1
    view.say("stopped")
    return 0


def _server_setting(environ: Mapping[str, str], key: str, default: int) -> int:
    """Return a server-wide setting from LMI's environment variables. Raises BadVariable."""
    found = [setting for setting in environment.read(environ, Path()).settings if setting.key == key]
    if not found:
        return default
    setting = min(found, key=lambda setting: setting.rank)
    type_ = by_name()[key].type
    try:
        return int(type_.from_text(setting.text.strip()))
    except BadValueError as error:
        allowed = setting.accepted or type_.accepted
        variable = setting.source.variable
        raise BadVariable(f"{variable}={setting.written!r} {error.reason}; allowed: {allowed}") from error


def _memory_limit(environ: Mapping[str, str]) -> int | None:
    """Return the bytes for all models, if they are limited. Raises BadVariable."""
    text = environ.get(MEMORY_LIMIT)
    if not text:
        return None
    if not text.strip().isdecimal():
        raise BadVariable(
            f"{MEMORY_LIMIT}={text!r} is not a whole number; allowed: MiB in digits, such as 4096"
        )
    return int(text) << 20
