"""config.json of Mixtral: Mistral's, and how many experts there are."""

from __future__ import annotations

from dataclasses import replace

from engines.models.config import llama
from engines.models.config.description import ExpertsConfig, ModelConfig
from engines.models.config.fields import Fields, UnsupportedModel


def read(fields: Fields) -> ModelConfig:
    experts, top_k = fields.count("num_local_experts", 8), fields.count("num_experts_per_tok", 2)
    if top_k > experts:
        raise UnsupportedModel(f"num_experts_per_tok is {top_k}; there are only {experts} experts")
    return replace(llama.read_windowed(fields), experts=ExpertsConfig(experts, top_k))
