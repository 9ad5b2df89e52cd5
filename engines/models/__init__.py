"""The architectures that we implement ourselves, by the name that stands in a model's config.json.

A new one needs its line here, and one for what reads its config.json (`engines.models.config.description`).
"""

from __future__ import annotations

from engines.registry import Registry

MODELS = Registry(
    {
        "FalconForCausalLM": "engines.models.falcon:Falcon",
        "LlamaForCausalLM": "engines.models.llama:Llama",
        "MistralForCausalLM": "engines.models.llama:Llama",
        "MixtralForCausalLM": "engines.models.mixtral:Mixtral",
        "Qwen3ForCausalLM": "engines.models.qwen3:Qwen3",
    }
)
