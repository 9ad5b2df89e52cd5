"""The architectures of engine=MPI: for each, the function that reads its config.json (`Fields` -> `ModelConfig`).

A new architecture is a file here and a line in this table.
"""

from __future__ import annotations

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
"""By the name in `architectures` of config.json."""
