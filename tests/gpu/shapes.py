"""config.json of real models, and of small ones of the same architectures. No weights are needed: they are random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines.models.architectures import read_config
from tests.support.published_models import PUBLISHED

_STEP_BYTES = 3e9
"""Memory for a small KV cache and the largest step."""

_FEW_LAYERS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {},
    "llama-3-8b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
    "qwen3-0.6b": {"vocab_size": 32000, "num_hidden_layers": 4},
    "falcon-7b": {"vocab_size": 8000, "num_hidden_layers": 2},
    "falcon-40b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_kv_heads": 2,
    },
    "mixtral-8x7b": {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
}
"""Head dimensions and query heads per KV head are those of the real models. SmolLM2 is not reduced."""

_SMALL = {"vocab_size": 97, "num_hidden_layers": 1, "max_position_embeddings": 256, "dtype": "float32"}
_SMALL_LLAMA = _SMALL | {
    "hidden_size": 32,
    "intermediate_size": 50,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
_TINY: dict[str, dict[str, Any]] = {
    "smollm2-135m": _SMALL_LLAMA,
    "llama-3-8b": _SMALL_LLAMA,
    "qwen3-0.6b": _SMALL_LLAMA,
    "falcon-7b": _SMALL | {"hidden_size": 80, "num_attention_heads": 5},
    "falcon-40b": _SMALL | {"hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2},
    "mixtral-8x7b": _SMALL_LLAMA | {"num_local_experts": 3, "intermediate_size": 30},
}
"""Changes for smoke runs."""


def real(name: str, smoke: bool) -> dict[str, Any]:
    """Return the published config; in a smoke run a tiny one of the same architecture."""
    return PUBLISHED[name] | (_TINY[name] if smoke else {})


def reduced(name: str, smoke: bool) -> dict[str, Any]:
    """Return a config of the same architecture with few layers; in a smoke run a tiny one."""
    return PUBLISHED[name] | (_TINY if smoke else _FEW_LAYERS)[name]


def write(config: dict[str, Any], folder: Path) -> Path:
    """Write config.json to `folder`. Return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def memory_bytes(folder: Path) -> float:
    """Return the bytes that an engine of this model needs in bf16, with a small KV cache."""
    return read_config(folder).weight_bytes(2) + _STEP_BYTES
