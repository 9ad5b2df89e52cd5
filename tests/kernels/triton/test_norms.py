"""Rounding of the norms in Triton kernels."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lmi_kernels import rms_norm, rope_and_store
from lmi_kernels._triton import INTERPRETED
from tests.support.seeds import fresh_generator

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

_WIDTH = 64


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
@torch.inference_mode()
def test_norms_round_as_in_transformers(kind: type[torch.nn.Module]) -> None:
    """Llama's norms round before and after the product with the weights, Gemma's only after it."""
    generator = fresh_generator()
    norm = kind(_WIDTH, eps=1e-6).to(torch.float16)
    stored = norm.get_parameter("weight").copy_(torch.rand(_WIDTH, generator=generator))
    weight = stored if kind is LlamaRMSNorm else 1.0 + stored.float()
    # The sum of the squares is exact, so its order does not matter.
    x = torch.randint(-64, 65, (30, _WIDTH), generator=generator).to(torch.float16) / 16
    expected = norm(x)
    assert torch.equal(rms_norm(x, weight, 1e-6), expected)

    rows = torch.zeros(10, dtype=torch.int64)
    pool = torch.zeros(2, 1, 10, 1, _WIDTH, dtype=torch.float16)
    qkv, slots = x.view(10, -1), torch.arange(10)
    q = rope_and_store(qkv, None, rows, slots, pool, num_heads=1, norms=(weight, weight), eps=1e-6)
    assert torch.equal(q[:, 0], expected[::3])
    assert torch.equal(pool[0].view(10, _WIDTH), expected[1::3])
    assert torch.equal(pool[1].view(10, _WIDTH), x[2::3])
