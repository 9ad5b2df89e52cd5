"""What both engines decide about a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from container.explain.resolve.decisions import CannotServe, Decisions
from container.machine import Machine
from container.models.files.folder import weights_problem
from engines.models.config import ModelConfig, element_bytes

_GIB = 1024**3
_FROM_CHECKPOINT = {"bfloat16": "bf16", "float16": "fp16"}


def require_safetensors(path: Path) -> None:
    """Raises `CannotServe` when the folder holds no weights that are read here, or not all of them."""
    if any(path.glob("*.safetensors")):
        if sentence := weights_problem(path):
            raise CannotServe(sentence)
        return
    others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.gguf") for file in path.glob(pattern))
    seen = f" (there is {others[0]}, which is not read)" if others else ""
    raise CannotServe(f"{path} holds no *.safetensors file{seen}")


def require_free(loaded: int, machine: Machine) -> None:
    """Raises `CannotServe` when weights of so many bytes alone are more than the memory that is free."""
    if loaded > machine.memory_available_bytes:
        raise CannotServe(
            f"the weights take {loaded / _GIB:.1f} GiB in memory, and {machine.memory_available_bytes / _GIB:.1f} GiB"
            " are free"
        )


def require_memory(path: Path, checkpoint: str, bytes_per_weight: int, machine: Machine) -> None:
    """Raises `CannotServe` when the weights in the folder's files alone are more than the memory that is free.

    checkpoint: the type of the weights on disk, in torch's words; bytes_per_weight: what each takes at least in memory.
    """
    on_disk = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    require_free(on_disk // (2 if checkpoint in _FROM_CHECKPOINT else 4) * bytes_per_weight, machine)


def hold_on_cpu(model: ModelConfig, degree: int, dtype: str, quantize: str, machine: Machine) -> None:
    """Raises `CannotServe` when the weights take more of a CPU's memory than is free."""
    element = element_bytes(model.dtype, dtype, quantize, bool(machine.cpu_kernels))
    require_free(model.weight_bytes(element, degree) * degree, machine)


def make_random(
    model: ModelConfig, degree: int, dtype: str, quantize: str, machine: Machine, made: Decisions
) -> None:
    """Notes what random weights take in memory: no files tell it.

    Raises: CannotServe: on a CPU, more than is free.
    """
    on_gpu = machine.gpu_count > 0
    if on_gpu:
        element = 4 if dtype == "fp32" else 2
    else:
        element = element_bytes(model.dtype, dtype, quantize, bool(machine.cpu_kernels))
    size = model.weight_bytes(element, degree)
    if not on_gpu:
        require_free(size * degree, machine)
    where = f"on each of {degree} {'GPUs' if on_gpu else 'ranks'}" if degree > 1 else "in memory"
    made.notes.append(
        f"option.load_format=dummy: the weights are random, so answers mean nothing; they take {size / _GIB:.3g} GiB"
        f" {where}"
    )


def read_config(path: Path) -> dict[str, Any]:
    """config.json as it stands. Raises `CannotServe`."""
    try:
        data = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotServe(f"{path / 'config.json'} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CannotServe(f"{path / 'config.json'} is not a JSON object")
    return data


def dtype(given: str, checkpoint: str, device: str, made: Decisions) -> str:
    """What the weights are stored as. given: `option.dtype`; checkpoint: the model's own, in torch's words."""
    if given != "auto":
        if device == "cpu" and given != "fp32":
            made.notes.append(
                f"option.dtype={given}: weights are rounded to {given} and kept so; on the CPU"
                " products are computed in fp32"
            )
        return given
    if device == "cpu":
        made.computed("option.dtype", "fp32", f"on a CPU; every {checkpoint} weight is kept exactly")
        return "fp32"
    chosen = _FROM_CHECKPOINT.get(checkpoint, "bf16")
    why = (
        "as the checkpoint is" if checkpoint in _FROM_CHECKPOINT else f"half of the checkpoint's {checkpoint}"
    )
    made.computed("option.dtype", chosen, why)
    return chosen


def a(device: str) -> str:
    return "a CPU" if device == "cpu" else "a GPU"
