"""The model classes of engine=MPI, by the architecture that config.json names.

A new architecture needs a line here, and one for the function that reads its config.json (`config/description.py`).
"""

from __future__ import annotations

from engines.registry import Registry

MODELS = Registry(
    {
        "FalconForCausalLM": "engines.models.falcon:Falcon",
        "LlamaForCausalLM": "engines.models.llama:Llama",
        "MistralForCausalLM": "engines.models.llama:Llama",
        "MixtralForCausalLM": "engines.models.llama:Llama",
        "Qwen3ForCausalLM": "engines.models.llama:Llama",
    }
)
