"""Checks of a model's weights and their dtype, shared by both engines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from container.explain.hardware import Device
from container.explain.resolve.decisions import CannotServe, Decisions
from container.machine import Machine
from container.models.errors import ModelNotAvailable
from container.models.files.folder import checked_weight_files, weights_problem
from engines.config import ModelSettings
from engines.models.config import ModelConfig, UnsupportedModel, element_bytes
from engines.models.config.fields import Fields, config_json
from engines.models.weight_files import read_header, stored_tensors

_GIB = 1024**3
_FROM_CHECKPOINT = {"bfloat16": "bf16", "float16": "fp16"}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Names of dtypes in torch, by those in safetensors files."""


def require_safetensors(path: Path) -> None:
    """Raise CannotServe if safetensors files are missing from the folder or incomplete, or if matrices are quantized
    and config.json does not say how: their scales would be ignored."""
    if sentence := weights_problem(path):
        raise CannotServe(sentence)
    if read_config_json(path).get("quantization_config"):
        return
    for tensor in stored_tensors(path):
        is_matrix = len(tensor.shape) > 1 and tensor.name.endswith((".weight", ".weight_packed"))
        if is_matrix and tensor.dtype not in (*_DTYPES, "F64"):
            raise CannotServe(
                f"the weights are quantized: {tensor.name} has the dtype {tensor.dtype}, and config.json has no"
                " quantization_config; use the unquantized model"
            )


def count_parameters(path: Path) -> int:
    """Return the number of a model's parameters, from the headers of its files; 0 if they are missing or incomplete."""
    try:
        headers = map(read_header, checked_weight_files(path))
        return sum(math.prod(tensor.shape) for header in headers for tensor in header)
    except (ModelNotAvailable, SafetensorError):  # `weights_problem` says what is wrong
        return 0


def require_free(num_bytes: int, machine: Machine, can_quantize: bool = False) -> None:
    """Raise CannotServe if weights of this size exceed the free memory. can_quantize: option.quantize may help."""
    if num_bytes > machine.memory_available_bytes:
        remedy = ", or set option.quantize=int8" if can_quantize else ""
        raise CannotServe(
            f"the weights take {num_bytes / _GIB:.1f} GiB in memory, but only"
            f" {machine.memory_available_bytes / _GIB:.1f} GiB are free; use a smaller model or more memory{remedy}"
        )


def rank_bytes(model: ModelConfig, settings: ModelSettings, ranks: int, machine: Machine) -> int:
    """Return the bytes of rank 0's weights under engine=MPI, at most."""
    if machine.gpu_count:
        return model.weight_bytes(4 if settings.dtype == "fp32" else 2, ranks)
    # On a CPU each matrix keeps the dtype in which it is stored, whatever config.json says.
    counts = Counter() if settings.load_format == "dummy" else _count_by_dtype(Path(settings.path))
    counts = counts or Counter({model.dtype: 1})
    num_bytes = sum(
        count * element_bytes(stored, settings.dtype, bool(machine.cpu_kernels))
        for stored, count in counts.items()
    )
    int8 = settings.quantize == "int8"
    bounds = model.logit_bounds_bytes(ranks) if machine.cpu_kernels and not int8 else 0
    return model.weight_bytes(num_bytes / counts.total(), ranks, int8) + bounds


def _count_by_dtype(path: Path) -> Counter[str]:
    """Return the number of elements of all matrices by dtype, from the headers of a model's safetensors files."""
    counts: Counter[str] = Counter()
    for tensor in stored_tensors(path):
        if len(tensor.shape) > 1 and tensor.dtype in _DTYPES:
            counts[_DTYPES[tensor.dtype]] += math.prod(tensor.shape)
    return counts


def checkpoint_dtype(path: Path, data: Mapping[str, Any]) -> str:
    """Return the dtype that config.json, `data`, names, else that of most numbers in the model's files, as in torch."""
    fields = Fields(data)
    counts = Counter() if fields.is_set("dtype") or fields.is_set("torch_dtype") else _count_by_dtype(path)
    return counts.most_common(1)[0][0] if counts else fields.dtype


def read_config_json(path: Path) -> dict[str, Any]:
    """Return the content of config.json. Raises CannotServe."""
    try:
        return config_json(path)
    except UnsupportedModel as error:
        raise CannotServe(str(error)) from error


def dtype(
    option: str, checkpoint: str, device: str, decisions: Decisions, kernels_on: Device | None = None
) -> str:
    """Resolve the dtype of the weights.

    option: `option.dtype`; checkpoint: the model's own, named as in torch.
    kernels_on: the GPU that this server's own kernels run on, if it is known. They need its support of the dtype.

    Raises:
        CannotServe: the GPU does not support the requested dtype.
    """
    lack = ""
    if kernels_on is not None and "bf16" not in kernels_on.flops:
        lack = f"{kernels_on.name} does not support bf16 arithmetic"
    if option != "auto":
        if device == "cpu" and option != "fp32":
            decisions.notes.append(
                f"option.dtype={option}: weights are rounded to {option}; the CPU computes in fp32"
            )
        if lack and option == "bf16":
            raise CannotServe(f"option.dtype: {lack} (got bf16); allowed: auto, fp16, fp32")
        return option
    if device == "cpu":
        why = f"on a CPU; exact for {checkpoint} weights"
        return decisions.record("option.dtype", "fp32", why)
    found = _FROM_CHECKPOINT.get(checkpoint)
    if lack and found != "fp16":
        return decisions.record("option.dtype", "fp16", lack)
    if found:
        return decisions.record("option.dtype", found, "the checkpoint's dtype")
    return decisions.record("option.dtype", "bf16", f"half the size of the checkpoint's {checkpoint}")
