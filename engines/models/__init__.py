"""The functions that make the models of engine=MPI, by the architecture that config.json names.

A new architecture needs a line here, and one for the function that reads its config.json (`config/description.py`).
"""

from __future__ import annotations

from engines.registry import Registry

MODELS = Registry(
    {
        "FalconForCausalLM": "engines.models.falcon:falcon",
        "LlamaForCausalLM": "engines.models.llama:llama",
        "MistralForCausalLM": "engines.models.llama:llama",
        "MixtralForCausalLM": "engines.models.llama:llama",
        "Qwen2ForCausalLM": "engines.models.llama:llama",
        "Qwen3ForCausalLM": "engines.models.llama:llama",
    }
)
