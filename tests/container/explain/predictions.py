"""Configurations of published models, and predictions of them from their config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from container.explain.check import check
from container.explain.prediction.memory import MemoryPrediction
from container.explain.report import CheckReport
from container.explain.target import ServingTarget, device_target
from container.machine import Machine

GIB = 1024**3
CPU_MACHINE = Machine(cpu_count=2, memory_available_bytes=16 * GIB)

FALCON_40B: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"],
    "vocab_size": 65024,
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
MISTRAL_7B = LLAMA_3_8B | {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}


def check_model(
    folder: Path,
    config: dict[str, Any],
    text: str = "",
    target: ServingTarget | None = None,
    length: int | None = None,
) -> CheckReport:
    """Check a folder that has a config.json and no weights. target: None: a CPU of 16 GiB."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    (folder / "serving.properties").write_text(f"option.model_id={model}\n{text}")
    return check(folder, {}, CPU_MACHINE, target=target, length=length)


def predict(
    folder: Path, config: dict[str, Any], text: str, device: str, count: int, length: int | None = None
) -> MemoryPrediction:
    """As `check_model`, and there must be a prediction of memory."""
    found = check_model(folder, config, text, device_target(device, count), length).memory
    assert found is not None
    return found
