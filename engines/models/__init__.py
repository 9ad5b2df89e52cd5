"""The architectures that we implement ourselves, by the name that stands in a model's config.json."""

from __future__ import annotations

from engines.registry import Registry

MODELS = Registry({"LlamaForCausalLM": "engines.models.llama:Llama"})
