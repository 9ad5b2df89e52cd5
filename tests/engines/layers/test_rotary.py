from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
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


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
}


def _assert_equal_bits(head_dim: int, rope: dict[str, Any], trained_length: int, num_positions: int) -> None:
    """Compare the table with transformers' for a sequence of `num_positions`."""
    positions = torch.tensor([0, 1, 5, 63, 64, 1000, 4095, num_positions - 1, 5]).clamp_(
        max=num_positions - 1
    )
    rotary = Fields({"rope_parameters": rope, "max_position_embeddings": trained_length}).rotary(head_dim)
    table = rotary_tables([rotary], num_positions, torch.device("cpu"))[rotary]
    assert table.shape == (num_positions, head_dim)
    cos, signed_sin = cosines_and_sines(table, positions)
    embedding = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=trained_length,
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
def test_tables_are_bit_identical_to_transformers(head_dim: int, rope: dict[str, Any]) -> None:
    _assert_equal_bits(head_dim, rope, trained_length=8192, num_positions=8192)


@pytest.mark.parametrize("changes", [{}, {"factor": 3.0}, {"attention_factor": 1.3}])
@pytest.mark.parametrize("num_positions", [100, 4096, 4097, 32768])
def test_longrope_uses_the_long_factors_if_a_sequence_may_be_longer_than_trained(
    num_positions: int, changes: dict[str, float]
) -> None:
    factors = {
        "short_factor": [1.0 + i / 7 for i in range(24)],
        "long_factor": [2.0 + i * i for i in range(24)],
    }
    _assert_equal_bits(48, LONGROPE | factors | changes, trained_length=32768, num_positions=num_positions)


def test_dynamic_scaling_depends_on_the_longest_sequence() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    for num_positions in (1000, 2048):
        _assert_equal_bits(64, rope, trained_length=2048, num_positions=num_positions)
    fields = {"rope_parameters": rope, "max_position_embeddings": 2048}
    rotary = Fields(fields).rotary(64)
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, max_position_embeddings=2048, rope_parameters=rope
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=5000)
    table = rotary_tables([rotary], 5000, torch.device("cpu"))[rotary]
    angles = torch.outer(torch.arange(5000).float(), frequencies)
    assert torch.equal(table, torch.cat((angles.cos(), angles.sin()), dim=-1))
    plain = Rotary(64)
    short = rotary_tables([plain, rotary], 2048, torch.device("cpu"))
    assert torch.equal(short[rotary], short[plain])
