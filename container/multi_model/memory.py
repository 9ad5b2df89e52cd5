"""Memory that models take, by prediction before they are loaded and by measurement after, and what is left."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from container.explain.check import check
from container.explain.prediction.memory import CONTEXT_BYTES
from container.machine import Machine, detect
from container.multi_model.errors import BadModel
from container.run.launch import VISIBLE_GPUS
from container.run.processes import process_tree

_PROCESS_BYTES = 600 << 20
"""Of a server's processes beside weights, activations and KV cache."""
_AMPLE_BYTES = 1 << 50
_FILES_FACTOR = 1.2
"""Memory for each byte of files whose model is not known, as LMI estimates."""
_DEFAULT_LOADING_TIMEOUT = 1200.0
_SMI_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a model takes once it is loaded, and what its server is given."""

    host: int
    """Bytes of main memory."""
    gpu: int = 0
    """Bytes of each GPU."""
    kv_cache_gb: str = ""
    """`option.kv_cache_gb` as decided for the memory that is free; empty where the engine decides."""
    loading_timeout: float = _DEFAULT_LOADING_TIMEOUT


class MemoryUser(Protocol):
    """A model that is loaded, or is being loaded."""

    @property
    def need(self) -> MemoryNeed | None:
        """None while it takes nothing."""

    @property
    def pid(self) -> int | None:
        """Of its server."""

    @property
    def is_ready(self) -> bool:
        """Whether it has taken all GPU memory that it will."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the next model may take."""

    machine: Machine
    """With the free main memory that is not promised to others."""
    gpu: int = 0
    """Bytes of the fullest GPU that are free."""

    def holds(self, need: MemoryNeed) -> bool:
        return need.host <= self.machine.memory_available_bytes and need.gpu <= self.gpu


class MemoryAccount:
    """Counts what models take: each what was predicted or, if that is more, what is measured."""

    def __init__(
        self,
        environ: Mapping[str, str],
        limit: int | None,
        reserved: int,
        measure: Callable[[int], int] | None = None,
        look: Callable[[Mapping[str, str]], Machine] = detect,
    ) -> None:
        """limit: bytes for all models; None: all of the machine. reserved: bytes that stay free."""
        self._environ = environ
        self._limit = limit
        self._reserved = reserved
        self._measure = measure or resident_bytes
        self._look = look

    def room(self, users: Iterable[MemoryUser]) -> Room:
        """What is left beside `users`."""
        machine = self._look(self._environ)
        free, taken, promised_gpu = machine.memory_available_bytes - self._reserved, 0, 0
        for user in users:
            if user.need is None:
                continue
            measured = self._measure(user.pid) if user.pid is not None else 0
            taken += max(user.need.host, measured)
            free -= max(user.need.host - measured, 0)
            promised_gpu += 0 if user.is_ready else user.need.gpu
        if self._limit is not None:
            free = min(free, self._limit - taken)
        gpu = gpu_bytes("free", self._environ) - promised_gpu if machine.gpu_count else 0
        return Room(replace(machine, memory_available_bytes=max(free, 0)), gpu)

    def room_without(self, users: Iterable[MemoryUser]) -> Room:
        """An upper bound of the room if `users`, which are all other models, were gone."""
        # Measured before the look: what ends in between counts twice, not never.
        freed = sum(self.measured(user) for user in users)
        machine = self._look(self._environ)
        free = machine.memory_available_bytes - self._reserved + freed
        if self._limit is not None:
            free = min(free, self._limit)
        gpu = gpu_bytes("total", self._environ) if machine.gpu_count else 0
        return Room(replace(machine, memory_available_bytes=max(free, 0)), gpu)

    def measured(self, user: MemoryUser) -> int:
        """Bytes of main memory that it takes now."""
        return self._measure(user.pid) if user.pid is not None else 0


def predict_need(
    folder: Path, environ: Mapping[str, str], machine: Machine, lenient: bool, allow_remote_code: bool
) -> MemoryNeed:
    """Predict what `lmi serve FOLDER` takes on `machine`. Raises BadModel: it cannot be served.

    More than there is, where the model could be served with more memory.
    """
    examine = partial(check, folder, environ, lenient=lenient, allow_remote_code=allow_remote_code)
    report = examine(machine)
    if lacks_memory := bool(report.reasons):
        report = examine(replace(machine, memory_available_bytes=_AMPLE_BYTES))
    if wrong := report.problems or report.reasons:
        raise BadModel("; ".join(wrong))
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
        loading_timeout=_number(values.get("option.model_loading_timeout"), _DEFAULT_LOADING_TIMEOUT),
    )


def _number(text: str | None, default: float) -> float:
    """The number in a value of `lmi check`, which says in words what is not decided yet."""
    with contextlib.suppress(ValueError):
        return float(text or "")
    return default


def resident_bytes(pid: int) -> int:
    """Memory of a process and its descendants; what several of all processes share counts by its share."""
    return sum(_resident(Path(f"/proc/{each}")) for each in process_tree(pid))


def _resident(process: Path) -> int:
    for file, pattern in (("smaps_rollup", r"^Pss:\s+(\d+) kB"), ("status", r"^VmRSS:\s+(\d+) kB")):
        with contextlib.suppress(OSError):
            if match := re.search(pattern, (process / file).read_text(), re.MULTILINE):
                return int(match[1]) * 1024
    return 0


def gpu_bytes(kind: Literal["free", "total"], environ: Mapping[str, str]) -> int:
    """Memory of the visible GPU that has the least of this kind; 0 where the driver does not say."""
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
