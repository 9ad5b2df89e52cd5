"""Predicted sizes of transformers models without weight files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.models.transformers_backend.description import describe

_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("starcoder2", {}),
        ("phi", {}),
        ("nemotron", {"head_dim": 16}),
        ("arcee", {}),
        ("persimmon", {}),
        ("glm4", {"head_dim": 16}),
        ("olmoe", {"num_experts": 8}),
        ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
        ("ernie4_5_moe", {"moe_num_experts": 8, "moe_intermediate_size": 32, "moe_layer_start_index": 2}),
        ("glm4_moe", {"n_routed_experts": 8, "head_dim": 16, "first_k_dense_replace": 2}),
        ("exaone_moe", {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"], "sliding_window": 8}),
        ("granitemoeshared", {"num_local_experts": 8, "shared_intermediate_size": 40}),
        ("minicpm3", {**_LATENT, "head_dim": 4}),
        ("deepseek_v3", {**_LATENT, "n_routed_experts": 8, "first_k_dense_replace": 1}),
        ("glm4_moe", {"n_routed_experts": 8, "head_dim": 16, "first_k_dense_replace": 2**31 - 1}),
    ],
)
def test_weights_are_predicted_from_config_json_alone(
    model_type: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    shape = {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "pad_token_id": None}
    config = AutoConfig.for_model(model_type, **shape, **heads, **changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    data = {**config.to_diff_dict(), **shape, **heads, **changes}
    (tmp_path / "config.json").write_text(json.dumps(data | {"architectures": [type(model).__name__]}))
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert describe(tmp_path).weight_bytes(1) == pytest.approx(expected, rel=0.01)
