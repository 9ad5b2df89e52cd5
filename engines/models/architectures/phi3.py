"""Phi-3 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): Llama with fused projections."""

from __future__ import annotations

from engines.models.architectures import llama
from engines.models.config.description import ModelConfig
from engines.models.config.fields import Fields
from engines.models.config.weight_names import WeightNames

_NAMES = WeightNames(qkv=("self_attn.qkv_proj",), mlp_inputs=("mlp.gate_up_proj",))


def read(fields: Fields) -> ModelConfig:
    """Read a Phi-3 config. Defaults are those of transformers' `Phi3Config`, which also reads `yarn` as `longrope`."""
    fields = fields.with_rope_type("longrope", old="yarn")
    fields = fields.with_defaults(rms_norm_eps=1e-5, original_max_position_embeddings=4096)
    config = llama.read(
        fields, partial_rotary=True, names=_NAMES, qkv_bias=False, output_bias=False, mlp_bias=False
    )
    return llama.with_windows(config, [fields.count_or_none("sliding_window")] * config.num_layers)
