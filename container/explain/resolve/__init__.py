"""Decide open values of a configuration ('auto', 'max', unset) for one model on one machine. Imports no torch.

`lmi serve` starts the engine with the result, and `lmi check` prints it.
"""

from __future__ import annotations

from pathlib import Path

from container.explain.resolve import dynamic, handler, rolling, shared_memory
from container.explain.resolve.decisions import CannotServe, Decisions, Resolved
from container.machine import Machine
from engines.config import EngineConfig
from lmi_server.config import LmiConfig

__all__ = ["CannotServe", "Resolved", "obstacles", "resolve"]


def obstacles(config: LmiConfig, machine: Machine) -> tuple[str, ...]:
    """Why this configuration cannot be served here, judged without the model's files."""
    if config.handler is not None:
        return handler.obstacles(config, machine)
    engine = rolling if config.engine == "MPI" else dynamic
    degree = config.options.tensor_parallel_degree
    ranks = degree if config.engine == "MPI" and isinstance(degree, int) else 1
    lack = shared_memory.shortage(ranks, machine)
    return (*engine.obstacles(config.options, machine), *([lack] if lack else []))


def resolve(
    config: LmiConfig, model_path: Path | None, machine: Machine, allow_remote_code: bool = False
) -> Resolved:
    """Decide everything for the model in `model_path`; a handler may do without one.

    allow_remote_code: whether the operator allows code that comes with a model, and packages for a handler.
    Raises: CannotServe.
    """
    if reasons := obstacles(config, machine):
        raise CannotServe("; ".join(reasons))
    made = Decisions()
    if machine.note:
        made.notes.append(machine.note)
    engine: EngineConfig
    capacity = None
    if config.formatter is not None:
        handler.require_permission(config.formatter, allow_remote_code)
        made.notes.append(f"bodies and answers pass through the formatters in {config.formatter.file}")
    if config.handler is not None:
        engine = handler.resolve(config, config.handler, model_path, machine, made, allow_remote_code)
    elif model_path is None:
        raise CannotServe("there is no model; set option.model_id")
    elif config.engine == "MPI":
        engine, capacity = rolling.resolve(config, model_path, machine, made)
        if lack := shared_memory.shortage(engine.parallel.tp_size, machine):
            raise CannotServe(lack)
    else:
        engine = dynamic.resolve(config, model_path, machine, made, allow_remote_code)
    user = config.formatter
    formatter = None if user is None or model_path is None else handler.formatter(config, user, model_path)
    return Resolved(engine, tuple(made.notes), made.origins, made.values, capacity, formatter)
