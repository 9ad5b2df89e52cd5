"""Machines, a model and configurations for tests of `resolve` and `check`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from container.machine import Machine
from lmi_server.config import EngineOptions, LmiConfig, ModelSource, ServerConfig
from tests.support.model_files import EMPTY_SAFETENSORS

GIB = 1024**3
CPU = Machine(cpu_count=8, memory_available_bytes=32 * GIB)
GPUS = dataclasses.replace(CPU, gpu_count=4, gpu_names=("NVIDIA H200",) * 4)

# The shape of SmolLM2-135M. Each token has 2 * 30 * 3 * 64 values in the KV cache.
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4


def make_model(folder: Path, shape: dict[str, Any] = SHAPE, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**shape, **changes}))
    (folder / "model.safetensors").write_bytes(EMPTY_SAFETENSORS)
    return folder


def config(
    engine: str = "MPI", trust_remote_code: bool = False, load_format: str = "auto", **options: Any
) -> LmiConfig:
    source = ModelSource("some/name", load_format=load_format, trust_remote_code=trust_remote_code)
    server = ServerConfig(predict_timeout=17.0)
    return LmiConfig(engine=engine, source=source, options=EngineOptions(**options), server=server)
