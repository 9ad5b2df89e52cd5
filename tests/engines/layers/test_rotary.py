from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engines.layers.rotary import RotaryTable
from engines.models.config import ModelConfig, RopeScaling

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _config(head_dim: int, rope: dict[str, Any]) -> ModelConfig:
    scaling = None
    if rope["rope_type"] != "default":
        scaling = RopeScaling(
            rope["rope_type"],
            **{name: value for name, value in rope.items() if name not in ("rope_type", "rope_theta")},
        )
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=8,
        hidden_size=head_dim,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        max_position_embeddings=8192,
        norm_eps=1e-5,
        rope_theta=rope["rope_theta"],
        rope_scaling=scaling,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        dtype="float32",
        eos_token_ids=(),
    )


@pytest.mark.parametrize("head_dim", [2, 64, 128])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 100000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
        LLAMA3,
        LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 64},
    ],
)
def test_tables_have_the_bits_of_transformers(head_dim: int, rope: dict[str, Any]) -> None:
    positions = torch.tensor([0, 1, 5, 63, 64, 1000, 4095, 8191, 5])
    cos, signed_sin = RotaryTable(_config(head_dim, rope), 8192, torch.device("cpu")).lookup(positions)
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


@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 10000.0}, LLAMA3])
def test_the_table_holds_what_is_looked_up(rope: dict[str, Any]) -> None:
    device, positions = torch.device("cpu"), torch.tensor([0, 1, 63, 99, 1])
    whole = RotaryTable(_config(64, rope), 100, device)
    rotary = RotaryTable(_config(64, rope), 100, device, as_table=True)
    cos, signed_sin = (values[:, 0] for values in whole.lookup(positions))
    assert rotary.table.shape == (100, 64)
    assert rotary.table.dtype == torch.float32
    assert torch.equal(rotary.table[positions], torch.cat((cos[:, 32:], signed_sin[:, 32:]), dim=-1))
    for found, expected in zip(rotary.lookup(positions), whole.lookup(positions), strict=True):
        assert torch.equal(found, expected)


def test_a_table_that_was_not_asked_for_is_not_there() -> None:
    rotary = RotaryTable(_config(4, {"rope_type": "default", "rope_theta": 1e4}), 8, torch.device("cpu"))
    with pytest.raises(ValueError, match="not kept as a table"):
        _ = rotary.table
