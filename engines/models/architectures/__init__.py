"""Architectures of engine=MPI. Each has a function that reads its config.json (`Fields` -> `ModelConfig`).

To add an architecture, add a file here and a line to this table.
"""

from __future__ import annotations

from pathlib import Path

from engines.models.config import ModelConfig, UnsupportedModel
from engines.models.config.fields import Fields, config_json
from engines.models.config.selection import with_architecture
from engines.registry import Registry

_FOLDER = "engines.models.architectures"

ARCHITECTURES = Registry(
    {
        "BloomForCausalLM": f"{_FOLDER}.bloom:read",
        "FalconForCausalLM": f"{_FOLDER}.falcon:read",
        "GemmaForCausalLM": f"{_FOLDER}.gemma:read",
        "Gemma2ForCausalLM": f"{_FOLDER}.gemma:read_gemma2",
        "Gemma3ForCausalLM": f"{_FOLDER}.gemma:read_gemma3",
        "GPT2LMHeadModel": f"{_FOLDER}.gpt2:read",
        "GPTNeoXForCausalLM": f"{_FOLDER}.gpt_neox:read",
        "LlamaForCausalLM": f"{_FOLDER}.llama:read",
        "MinistralForCausalLM": f"{_FOLDER}.llama:read_mistral",
        "MistralForCausalLM": f"{_FOLDER}.llama:read_mistral",
        "MixtralForCausalLM": f"{_FOLDER}.llama:read_mixtral",
        "MptForCausalLM": f"{_FOLDER}.mpt:read",
        "OPTForCausalLM": f"{_FOLDER}.opt:read",
        "Phi3ForCausalLM": f"{_FOLDER}.phi3:read",
        "Qwen2ForCausalLM": f"{_FOLDER}.qwen:read_qwen2",
        "Qwen3ForCausalLM": f"{_FOLDER}.qwen:read_qwen3",
        "Qwen3MoeForCausalLM": f"{_FOLDER}.qwen:read_qwen3_moe",
    }
)
"""Readers by the name in the `architectures` field of config.json."""
_MODEL_TYPES = {
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "LlamaForCausalLM": "llama",
    "MinistralForCausalLM": "mistral",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""Model types of architectures with the same tensor names. transformers selects the architecture by the model type.

The types mistral and ministral are read alike."""


def read_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`.

    Raises:
        UnsupportedModel: the file is missing or not JSON, the architecture is unknown, or a field is missing or
            has an unsupported value.
    """
    file = folder / "config.json"
    data = config_json(folder)
    fields = Fields(with_architecture(data))
    if fields.architecture not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(
            f"{file} names the architecture {fields.architecture!r}; supported: {supported}"
        )
    fields.require_plain_weights()
    own_type, model_type = _MODEL_TYPES.get(fields.architecture), data.get("model_type")
    known_type = "mistral" if model_type == "ministral" else model_type
    if own_type not in (None, known_type) and known_type in _MODEL_TYPES.values():
        raise UnsupportedModel(
            f"{file}: model_type: does not match the architecture {fields.architecture} (got {model_type!r});"
            f" allowed: {own_type!r}"
        )
    try:
        config: ModelConfig = ARCHITECTURES[fields.architecture](fields)
    except KeyError as error:
        raise UnsupportedModel(f"{file} has no field {error}") from None
    return config
