"""Number of copies of the model, and each copy's share of the machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from container.explain.resolve.decisions import Decisions
from container.machine import Machine
from lmi_server.config import EngineOptions

_GIB = 1024**3
_OPTION = "option.data_parallel_size"


def num_copies(options: EngineOptions, machine: Machine) -> int:
    """Return the configured number of copies. Defaults to as many as fit on the GPUs, or 1 on a CPU."""
    if options.data_parallel_size is not None:
        return options.data_parallel_size
    degree = options.tensor_parallel_degree
    fit = machine.gpu_count // degree if isinstance(degree, int) else 1
    most = options.max_workers if options.max_workers is not None else fit
    return max(1, options.min_workers, min(fit, most))


def fewer_copies(options: EngineOptions, most: int) -> str:
    """Return the settings for at most `most` copies; empty if the configured minimum is not larger."""
    configured = {_OPTION: options.data_parallel_size or 1, "minWorkers": options.min_workers}
    return " and ".join(f"{name}={most}" for name, count in configured.items() if count > most)


def machine_share(options: EngineOptions, machine: Machine) -> Machine:
    """Return one copy's share of the machine."""
    count = num_copies(options, machine)
    if count == 1:
        return machine
    degree = options.tensor_parallel_degree
    gpus = min(degree, machine.gpu_count) if isinstance(degree, int) else machine.gpu_count // count
    return dataclasses.replace(
        machine,
        cpu_count=max(1, machine.cpu_count // count),
        memory_available_bytes=machine.memory_available_bytes // count,
        gpu_count=max(gpus, 1) if machine.gpu_count else 0,
        gpu_names=machine.gpu_names[:gpus],
    )


def obstacles(options: EngineOptions, machine: Machine, most_processes: int) -> Iterator[str]:
    """Yield the reason why the copies do not fit. most_processes: the limit on a CPU."""
    count, degree = num_copies(options, machine), options.tensor_parallel_degree
    each = degree if isinstance(degree, int) else 1
    available = machine.gpu_count or most_processes
    if count == 1 or each > available or count * each <= available:
        return
    kind, has = "GPUs", f"{machine.name} has {available}"
    if not machine.gpu_count:
        kind = "processes"
        has = f"the {machine.cpu_count} core(s) of {machine.name} can run at most {available}"
    yield (
        f"{count} copies with {each} rank(s) each need {count * each} {kind}; {has}; allowed: at most"
        f" {available // each} ({_OPTION}, minWorkers)"
    )


def record_copies(options: EngineOptions, machine: Machine, degree: int, decisions: Decisions) -> None:
    """Record the number of copies, the reason for it, and each copy's share. degree: GPUs or ranks of one copy."""
    count = num_copies(options, machine)
    if options.data_parallel_size is None:
        why = f"{machine.gpu_count} GPUs, {degree} for each" if machine.gpu_count else "minWorkers"
        decisions.record(_OPTION, count, why if count > 1 else "one copy; minWorkers sets more")
    used = count * degree
    if used < machine.gpu_count:
        copies = "one copy" if count == 1 else f"{count} copies"
        decisions.notes.append(
            f"{copies} on the first {used} of {machine.gpu_count} GPUs; the others stay idle"
        )
    if not machine.gpu_count and (options.max_workers or 0) > count:
        decisions.notes.append(
            f"maxWorkers={options.max_workers} has no effect: copies are not added under load; minWorkers sets the"
            " number of copies"
        )
    if count == 1:
        return
    of_each = machine_share(options, machine)
    gpus = f"{degree} GPU(s), " if machine.gpu_count else ""
    decisions.notes.append(
        f"{count} copies of the model, each with {gpus}{of_each.cpu_count} core(s) and"
        f" {of_each.memory_available_bytes / _GIB:.1f} GiB of free memory; option.kv_cache_gb applies to each copy"
    )
    if not machine.gpu_count and count > machine.cpu_count:
        decisions.notes.append(f"{count} copies on {machine.cpu_count} core(s): correct, but slow")
