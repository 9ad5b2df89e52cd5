"""Parts of the GGUF conversion against plain definitions. files/test_bundled.py tests the whole conversion."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.models.gguf_config import UnknownGguf
from container.models.gguf_convert import to_bf16, unpermute, weight_name


def bf16_value(bits: int) -> float:
    """Return the value of a bf16 bit pattern."""
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127, min_value=-(2.0**127)))
def test_bf16_rounds_to_nearest_and_ties_to_even(value: float) -> None:
    (bits,) = to_bf16(np.array([value], dtype=np.float32)).tolist()
    distance = abs(bf16_value(bits) - value)
    for neighbor in (bits - 1, bits + 1):
        if 0 <= neighbor < 1 << 16 and math.isfinite(bf16_value(neighbor)):
            other = abs(bf16_value(neighbor) - value)
            assert distance < other or (distance == other and bits % 2 == 0)


def test_rotary_pairs_are_permuted_to_two_halves() -> None:
    # Two heads of 4 rows. GGUF stores the rows of a head as pairs (0, 2), (1, 3).
    rows = np.array([0, 2, 1, 3, 4, 6, 5, 7], dtype=np.float32)[:, None].repeat(3, axis=1)
    assert unpermute(rows, 2)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("gguf_name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensors_get_their_checkpoint_names(gguf_name: str, expected: str) -> None:
    assert weight_name(gguf_name) == expected


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_exps.weight"])
def test_an_unknown_tensor_is_rejected_by_name(name: str) -> None:
    with pytest.raises(UnknownGguf, match=name):
        weight_name(name)
