"""Memory accounting of models: predicted before they are loaded, measured afterwards."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from container.explain.check import check
from container.explain.target import this_machine
from container.machine import Machine, detect
from container.multi_model.errors import BadModel
from container.multi_model.served_model import MemoryNeed, ServedModel
from container.run.launch import VISIBLE_GPUS
from container.run.processes import process_tree
from engines.host_memory import bytes_of
from engines.mpi.runner.budget import CONTEXT_BYTES

_PROCESS_BYTES = 600 << 20
"""Memory of a server's processes besides weights, activations and KV cache."""
_AMPLE_BYTES = 1 << 50
_FILES_FACTOR = 1.2
"""Memory per byte of files if the model is unknown, as LMI estimates it."""
_MOST_REASONS = 5
"""Problems of a model that its error lists."""
_SMI_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Room:
    """Memory available to the next model."""

    machine: Machine
    """This machine, with the free main memory that is not reserved for other models."""
    gpu: int = 0
    """Free bytes on the fullest GPU."""
    is_limited: bool = False
    """Whether the limit of all models decides the main memory, not this machine."""

    def holds(self, need: MemoryNeed) -> bool:
        return need.host <= self.machine.memory_available_bytes and need.gpu <= self.gpu


class MemoryAccount:
    """Accounting of the models' memory. A model counts as predicted or as measured, whichever is larger."""

    def __init__(
        self,
        environ: Mapping[str, str],
        limit: int | None,
        reserved: int,
        measure: Callable[[int], int] | None = None,
        detect_machine: Callable[[Mapping[str, str]], Machine] = detect,
    ) -> None:
        """limit: bytes for all models; None means all of the machine's memory. reserved: bytes to leave free."""
        self._environ = environ
        self._limit = limit
        self._reserved = reserved
        self._measure = measure or resident_bytes
        self._detect_machine = detect_machine

    def room(self, models: Iterable[ServedModel]) -> Room:
        """Return the memory that `models` leave."""
        machine = self._detect_machine(self._environ)
        free, taken, promised_gpu = machine.memory_available_bytes - self._reserved, 0, 0
        for model in models:
            if model.need is None:
                continue
            measured = self.measured(model)
            taken += max(model.need.host, measured)
            free -= max(model.need.host - measured, 0)
            promised_gpu += 0 if model.is_ready else model.need.gpu
        gpu = gpu_bytes("free", self._environ) - promised_gpu if machine.gpu_count else 0
        return self._limited(machine, free, taken, gpu)

    def room_without(self, models: Iterable[ServedModel]) -> Room:
        """Return an upper bound of the memory that is free without `models`, which are all other models."""
        # Measure models before the machine, so that one that ends in between counts twice rather than never.
        freed = sum(self.measured(model) for model in models)
        machine = self._detect_machine(self._environ)
        free = machine.memory_available_bytes - self._reserved + freed
        gpu = gpu_bytes("total", self._environ) if machine.gpu_count else 0
        return self._limited(machine, free, 0, gpu)

    def _limited(self, machine: Machine, free: int, taken: int, gpu: int) -> Room:
        """Apply the limit. free: of the machine; taken: by models, of the limit; gpu: free on the fullest GPU."""
        left = free if self._limit is None else self._limit - taken
        available = max(min(free, left), 0)
        return Room(replace(machine, memory_available_bytes=available), gpu, is_limited=left < free)

    def measured(self, model: ServedModel) -> int:
        """Return the bytes of main memory that a model takes now."""
        return self._measure(model.pid) if model.pid is not None else 0


def predict_need(
    folder: Path, environ: Mapping[str, str], machine: Machine, lenient: bool, allow_remote_code: bool
) -> MemoryNeed:
    """Predict the memory of `lmi serve FOLDER` on `machine`. Raises BadModel if the model cannot be served.

    If only memory is lacking, the need exceeds the memory of `machine`.
    """
    examine = partial(check, folder, environ, lenient=lenient, allow_remote_code=allow_remote_code)
    try:
        report = examine(this_machine(machine))
    except OSError as error:
        raise BadModel(f"the model's files cannot be read: {error}") from error
    if lacks_memory := bool(report.reasons):
        report = examine(this_machine(replace(machine, memory_available_bytes=_AMPLE_BYTES)))
    if wrong := report.problems or report.reasons:
        more = [f"and {len(wrong) - _MOST_REASONS} more problems"] if len(wrong) > _MOST_REASONS else []
        raise BadModel("; ".join([*wrong[:_MOST_REASONS], *more]))
    values = {value.key: value.value for value in report.values}
    copies = int(_number(values.get("option.data_parallel_size"), 1))
    if report.memory is None:
        files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        each, ranks = int(_FILES_FACTOR * files), 1
    else:
        each = report.memory.weights + report.memory.activations + report.memory.kv_cache
        ranks = report.memory.ranks
    host, gpu = each * ranks, 0
    if machine.gpu_count:
        host, gpu = 0, each + CONTEXT_BYTES
    own_host = int(_number(values.get("required_memory_mb"), 0)) << 20
    own_gpu = int(_number(values.get("gpu.required_memory_mb"), 0)) << 20
    kv_cache = values.get("option.kv_cache_gb", "")
    host = own_host or (host + _PROCESS_BYTES) * copies
    return MemoryNeed(
        host=max(host, machine.memory_available_bytes + 1) if lacks_memory else host,
        gpu=own_gpu or gpu,
        kv_cache_gb=kv_cache if _number(kv_cache, 0) else "",
    )


def _number(text: str | None, default: float) -> float:
    """Return a value of `lmi check` as a number, or the default if the value is open and described in words."""
    with contextlib.suppress(ValueError):
        return float(text or "")
    return default


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants. Shared pages count proportionally (PSS)."""
    folders = [Path(f"/proc/{each}") for each in process_tree(pid)]
    return sum(
        bytes_of(each / "smaps_rollup", "Pss") or bytes_of(each / "status", "VmRSS") for each in folders
    )


def gpu_bytes(kind: Literal["free", "total"], environ: Mapping[str, str]) -> int:
    """Return the smallest free or total memory of the visible GPUs; 0 if nvidia-smi does not report it."""
    command = ["nvidia-smi", f"--query-gpu=memory.{kind}", "--format=csv,noheader,nounits"]
    if visible := environ.get(VISIBLE_GPUS):
        command += ["-i", visible]
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True
        ).stdout
        return min(int(line) for line in output.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0
