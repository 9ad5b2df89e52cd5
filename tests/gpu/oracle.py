"""Run transformers on the same weights and the same device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_SCALE = 0.05
"""Standard deviation of the weights: logits differ clearly, and activations stay bounded."""


def save(config: dict[str, Any], folder: Path, device: torch.device) -> None:
    """Save a checkpoint of random weights that bf16 represents exactly. Norms and biases are random too."""
    shape = {
        name: value for name, value in config.items() if name not in ("architectures", "model_type", "dtype")
    }
    model_config = AutoConfig.for_model(config["model_type"], **shape)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, _SCALE, generator=generator)
            if ("norm" in name or ".ln_" in name) and name.endswith("weight"):
                parameter.add_(1.0)
            parameter.copy_(parameter.bfloat16())
    model.save_pretrained(folder)


def load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    if getattr(model.config, "num_local_experts", None):
        # Expert by expert: the grouped product does not support all dtypes and shapes.
        model.set_experts_implementation("eager")
    return model.to(device).eval()


@torch.inference_mode()
def logits(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """Return the logits after the prompt, [vocab_size]."""
    ids = torch.tensor([list(prompt)], device=model.device)
    last: torch.Tensor = model(ids).logits[0, -1]
    return last


@torch.inference_mode()
def largest_gap(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Return by how much the logit of any of `tokens` is at most below the largest one, given the tokens before it. 0:
    these are the tokens of greedy sampling."""
    ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    logits = model(ids).logits[0, len(prompt) - 1 : -1].double()
    chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
    return float((logits.amax(-1) - chosen).max())


@torch.inference_mode()
def generate(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Generate `count` greedy tokens with transformers' own cache. No token ends the sequence."""
    tokens: list[int] = []
    ids, past = torch.tensor([list(prompt)], device=model.device), None
    for _ in range(count):
        output = model(ids, past_key_values=past, use_cache=True)
        past = output.past_key_values
        ids = output.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(int(ids))
    return tokens
