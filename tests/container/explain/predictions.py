"""Configurations of published models, and predictions from config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from container.explain.check import check
from container.explain.prediction.memory import MemoryPrediction
from container.explain.report import CheckReport
from container.explain.target import ServingTarget, device_target
from container.machine import Machine
from tests.container.explain.questions import GIB
from tests.support.published_models import PUBLISHED

CPU_MACHINE = Machine(cpu_count=2, memory_available_bytes=16 * GIB)

FALCON_40B = PUBLISHED["falcon-40b"] | {"tie_word_embeddings": False}
MIXTRAL = PUBLISHED["mixtral-8x7b"]
LLAMA_3_8B = PUBLISHED["llama-3-8b"]
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
    """Check a folder with a config.json and no weights. `target` defaults to a CPU with 16 GiB."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    (folder / "serving.properties").write_text(f"option.model_id={model}\n{text}")
    return check(folder, {}, CPU_MACHINE, target=target, length=length)


def predict(
    folder: Path, config: dict[str, Any], text: str, device: str, count: int, length: int | None = None
) -> MemoryPrediction:
    """Like `check_model`, but return the memory prediction, which must exist."""
    prediction = check_model(folder, config, text, device_target(device, count), length).memory
    assert prediction is not None
    return prediction
