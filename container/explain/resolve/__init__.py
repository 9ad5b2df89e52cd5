"""Resolve open values of a configuration ('auto', 'max', unset) for one model on one machine. Does not import torch.

`lmi serve` starts the engine with the result, and `lmi check` prints it.
"""

from __future__ import annotations

from pathlib import Path

from container.explain.resolve import copies, dynamic, handler, rolling, shared_memory
from container.explain.resolve.decisions import CannotServe, Decisions, Resolved
from container.explain.resolve.handler import missing_modules
from container.machine import THIS_MACHINE, Machine
from engines.config import EngineConfig
from lmi_server.config import LmiConfig

__all__ = ["CannotServe", "Resolved", "missing_modules", "obstacles", "resolve"]


def obstacles(config: LmiConfig, machine: Machine) -> tuple[str, ...]:
    """Return the reasons why `machine` cannot serve this configuration, without looking at the model's files."""
    # Another machine's environment is unknown.
    missing = missing_modules(config) if machine.name == THIS_MACHINE else ()
    if config.handler is not None:
        return (*handler.obstacles(config, machine), *missing)
    options, rolls = config.options, config.engine == "MPI"
    engine = rolling if rolls else dynamic
    count, degree = copies.num_copies(options, machine), options.tensor_parallel_degree
    found = [*engine.obstacles(options, machine)]
    if not found:  # one copy fits
        found += copies.obstacles(options, machine, rolling.max_ranks(machine))
        share = copies.machine_share(options, machine)
        found += (_do_not_fit(count, machine, reason) for reason in engine.obstacles(options, share))
    lack = shared_memory.shortage(degree if rolls and isinstance(degree, int) else 1, machine, count)
    if "input_formatter" in config.formatter_roles:
        found += handler.body_obstacles(config, "an input formatter")
    return tuple(filter(None, (*found, *missing, machine.cpu_kernels_problem, lack)))


def _do_not_fit(count: int, machine: Machine, reason: str) -> str:
    return f"{count} copies do not fit on {machine.name}; with its share, one copy fails: {reason}"


def resolve(
    config: LmiConfig, model_path: Path | None, machine: Machine, allow_remote_code: bool = False
) -> Resolved:
    """Resolve all open values for the model in `model_path`. Only a handler may have no model. Raises CannotServe.

    allow_remote_code: whether the operator allows code that comes with a model, and packages for a handler.
    """
    if reasons := obstacles(config, machine):
        raise CannotServe("; ".join(reasons))
    decisions = Decisions()
    if machine.note:
        decisions.notes.append(machine.note)
    engine: EngineConfig
    capacity = None
    count = 1
    if config.formatter is not None:
        handler.require_permission(config.formatter, allow_remote_code)
        decisions.notes.append(
            f"request and response bodies pass through the formatters in {config.formatter.file}"
        )
    if config.handler is not None:
        engine = handler.resolve(config, config.handler, model_path, machine, decisions, allow_remote_code)
    elif model_path is None:
        raise CannotServe("no model is configured; set option.model_id")
    else:
        count = copies.num_copies(config.options, machine)
        path, share = model_path, copies.machine_share(config.options, machine)

        def decide(machine: Machine, decisions: Decisions) -> tuple[EngineConfig, int | None]:
            if config.engine == "MPI":
                return rolling.resolve(config, path, machine, decisions)
            return dynamic.resolve(config, path, machine, decisions, allow_remote_code), None

        try:
            engine, capacity = decide(share, decisions)
        except CannotServe as error:
            if count > 1:
                decide(machine, Decisions())  # raises if a single copy cannot be served either
                raise CannotServe(_do_not_fit(count, machine, str(error))) from error
            raise
        copies.record_copies(config.options, machine, engine.parallel.tp_size, decisions)
        if config.engine == "MPI" and (
            lack := shared_memory.shortage(engine.parallel.tp_size, machine, count)
        ):
            raise CannotServe(lack)
    user = config.formatter
    formatter = None if user is None or model_path is None else handler.formatter(config, user, model_path)
    return Resolved(
        engine, tuple(decisions.notes), decisions.origins, decisions.values, capacity, count, formatter
    )
