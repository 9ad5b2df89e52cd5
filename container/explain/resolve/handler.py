"""Resolve the options of a user's handler under engine=Python."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from container.explain.resolve.decisions import CannotServe, Decisions, batching
from container.machine import Machine
from engines.config import HandlerEngineConfig, HandlerSettings, ModelSettings, ParallelConfig
from engines.python.handlers.djl_modules import IF_MISSING, PACKAGE
from lmi_server.config import LmiConfig, UserHandler
from lmi_server.properties.handler_code import read_code

_MAX_BODY_BYTES = 128 * 1024 * 1024
"""Limit of a request's body, which is sent between processes as one message."""


def obstacles(config: LmiConfig, machine: Machine) -> Iterator[str]:
    """Yield the reasons why `machine` cannot serve the handler."""
    degree = config.options.tensor_parallel_degree
    if isinstance(degree, int) and degree > max(1, machine.gpu_count):
        has = machine.gpu_count or "none"
        yield f"option.tensor_parallel_degree={degree} gives each worker {degree} GPUs; {machine.name} has {has}"
    yield from body_obstacles(config, "a handler")


def missing_modules(config: LmiConfig) -> tuple[str, ...]:
    """Return why a handler or formatters cannot be imported here, for each missing module. Runs none of their code."""
    user = config.handler or config.formatter
    # The packages of a dotted name run before the file, and may change sys.path.
    if user is None or user.requirements or "." in user.module:
        return ()
    folders = [config.source.model_dir, str(Path(user.file).parent)]
    missing = []
    for name, line in read_code(Path(user.file)).imports.items():
        if PathFinder.find_spec(name, folders) is not None:
            break  # a module of the user, which may change sys.path
        if name != PACKAGE and not _is_installed(name):
            missing.append(f"{user.file}: line {line}: the module {name} is missing; {IF_MISSING}")
    return tuple(missing)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it is loaded, but not from a file, such as __main__
        return True


def body_obstacles(config: LmiConfig, receiver: str) -> Iterator[str]:
    """Yield the reason why request bodies cannot be passed to `receiver`."""
    if (size := config.server.max_request_size) > _MAX_BODY_BYTES:
        yield f"max_request_size: too large for {receiver} (got {size}); allowed: at most {_MAX_BODY_BYTES}"


def resolve(
    config: LmiConfig,
    handler: UserHandler,
    model_path: Path | None,
    machine: Machine,
    decisions: Decisions,
    allow_code: bool,
) -> HandlerEngineConfig:
    """Return the engine's configuration. Raises CannotServe.

    If there is a requirements.txt, the caller replaces the interpreter after installing the packages.
    model_path: the folder of a fetched model. allow_code: whether the operator allows packages to be installed.
    """
    require_permission(handler, allow_code)
    num_gpus = _gpus_per_worker(config, handler, machine)
    folder = Path(handler.file).parent if config.source.model_dir == "." else Path(config.source.model_dir)
    properties = {**handler.options, "tensor_parallel_degree": str(num_gpus)}
    if model_path is not None:
        properties["model_id"] = str(model_path)
    decisions.notes.append(f"requests are served by the handler {handler.file}")
    idle = machine.gpu_count - num_gpus * handler.max_workers
    if idle >= num_gpus:
        decisions.notes.append(
            f"{idle} of {machine.gpu_count} GPUs stay idle: maxWorkers is {handler.max_workers}, and each worker has"
            f" {num_gpus}; set maxWorkers={machine.gpu_count // num_gpus} to use them"
        )
    return HandlerEngineConfig(
        model=ModelSettings(str(folder.resolve()), config.source.model_id or Path(handler.file).name, "", 0),
        parallel=ParallelConfig(
            tp_size=num_gpus,
            device="cuda" if machine.gpu_count else "cpu",
            threads_per_rank=machine.threads(handler.max_workers),
        ),
        batching=batching(config),
        handler=_settings(config, handler, properties),
    )


def _gpus_per_worker(config: LmiConfig, handler: UserHandler, machine: Machine) -> int:
    """Return the tensor-parallel degree: by default all GPUs for a single worker, and one for each of several.

    1 without GPUs.
    """
    degree = config.options.tensor_parallel_degree
    if isinstance(degree, int):
        return degree
    return max(1, machine.gpu_count) if handler.max_workers == 1 else 1


def require_permission(handler: UserHandler, allow_code: bool) -> None:
    """Raise CannotServe if packages would have to be installed without permission."""
    if handler.requirements and not allow_code:
        raise CannotServe(
            f"{handler.requirements}: installing its packages runs third-party code; to allow this, start the server"
            " with lmi serve --allow-remote-code or LMI_ALLOW_REMOTE_CODE=true; or install the packages into the"
            " image and remove the file"
        )


def formatter(config: LmiConfig, user: UserHandler, model_path: Path) -> HandlerEngineConfig:
    """Return the configuration of the process that runs a user's formatters, one request at a time."""
    properties = {**user.options, "model_path": str(model_path)}
    return HandlerEngineConfig(
        model=ModelSettings(str(Path(user.file).parent), Path(user.file).name, "", 0),
        parallel=ParallelConfig(threads_per_rank=1),
        batching=replace(batching(config), batch_size=1, max_batch_delay=0.0),
        handler=replace(_settings(config, user, properties), min_workers=1, max_workers=1),
    )


def _settings(config: LmiConfig, user: UserHandler, properties: dict[str, str]) -> HandlerSettings:
    return HandlerSettings(
        file=user.file,
        function=user.function,
        properties=properties,
        python=sys.executable,
        min_workers=user.min_workers,
        max_workers=user.max_workers,
        max_idle_seconds=float(user.max_idle_seconds),
        loading_timeout=config.options.model_loading_timeout,
        module=user.module,
    )
