"""Machines, models and configurations for tests of `resolve` and `check`; predictions from config.json alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from container.explain.check import check
from container.explain.prediction.memory import MemoryPrediction
from container.explain.report import CheckReport
from container.explain.target import ServingTarget, device_target, this_machine
from container.machine import Machine
from lmi_server.config import EngineOptions, LmiConfig, ModelSource, ServerConfig
from tests.support.model_files import EMPTY_SAFETENSORS
from tests.support.published_models import PUBLISHED

GIB = 1024**3
CPU = Machine(cpu_count=8, memory_available_bytes=32 * GIB)
CPU_MACHINE = Machine(cpu_count=2, memory_available_bytes=16 * GIB)
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
FALCON_40B = PUBLISHED["falcon-40b"] | {"tie_word_embeddings": False}
MIXTRAL = PUBLISHED["mixtral-8x7b"]
LLAMA_3_8B = PUBLISHED["llama-3-8b"]
MISTRAL_7B = LLAMA_3_8B | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}


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


def check_model(
    folder: Path,
    config: dict[str, Any],
    text: str = "",
    target: ServingTarget | None = None,
    length: int | None = None,
) -> CheckReport:
    """Check a folder with a config.json and no weights. `target` defaults to a CPU with 16 GiB."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    (folder / "serving.properties").write_text(f"option.model_id={model}\n{text}")
    return check(folder, {}, target or this_machine(CPU_MACHINE), length=length)


def predict(
    folder: Path, config: dict[str, Any], text: str, device: str, count: int, length: int | None = None
) -> MemoryPrediction:
    """Like `check_model`, but return the memory prediction, which must exist."""
    prediction = check_model(folder, config, text, device_target(device, count), length).memory
    assert prediction is not None
    return prediction
