"""Llama checkpoints of any size in bf16, written without building a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM


def write_llama(
    folder: Path, make_tensor: Callable[[torch.Size], torch.Tensor], **config: Any
) -> dict[str, torch.Tensor]:
    """Write config.json and model.safetensors. Returns the tensors. config: fields of config.json."""
    described = LlamaConfig(architectures=["LlamaForCausalLM"], dtype="bfloat16", **config)
    described.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in LlamaForCausalLM(described).named_parameters()}
    tensors = {name: make_tensor(shape).bfloat16() for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors
