from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engines.layers.rotary import cosines_and_sines, rotary_tables
from engines.models.config import Rotary
from engines.models.config.fields import Fields

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
}


def _rotary(head_dim: int, rope: dict[str, Any]) -> Rotary:
    return Fields({"rope_parameters": rope, "max_position_embeddings": 8192}).rotary(head_dim)


@pytest.mark.parametrize("head_dim", [2, 64, 128])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 100000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
        LLAMA3,
        LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 64},
        YARN,
        YARN | {"attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        YARN
        | {"factor": 32.0, "original_max_position_embeddings": 256, "mscale": 0.7, "mscale_all_dim": 1.1},
    ],
)
def test_tables_have_the_bits_of_transformers(head_dim: int, rope: dict[str, Any]) -> None:
    positions = torch.tensor([0, 1, 5, 63, 64, 1000, 4095, 8191, 5])
    rotary = _rotary(head_dim, rope)
    table = rotary_tables([rotary], 8192, torch.device("cpu"))[rotary]
    assert table.shape == (8192, head_dim)
    cos, signed_sin = cosines_and_sines(table, positions)
    embedding = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=8192,
            rope_parameters=dict(rope),
        )
    )
    expected_cos, expected_sin = embedding(torch.empty(0), positions[None])
    half = head_dim // 2
    sin = torch.cat((-signed_sin[..., :half], signed_sin[..., half:]), dim=-1)
    assert cos.shape == signed_sin.shape == (len(positions), 1, head_dim)
    assert cos.dtype == signed_sin.dtype == torch.float32
    assert torch.equal(cos[:, 0], expected_cos[0])
    assert torch.equal(sin[:, 0], expected_sin[0])
