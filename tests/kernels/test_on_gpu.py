"""Every operation on a GPU against the same in double precision on the CPU. Needs torch and pytest alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lmi_kernels
from lmi_kernels.attention import attention_reference
from lmi_kernels.attention_plan import GroupLimits, decode_order, plan_chunk, plan_decodes
from tests.support.seeds import fresh_generator, integers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

GPU = torch.device("cuda")
# fp16 and bf16 have 11 and 8 bits; sums are fp32, so an error is a few roundings of inputs and result.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def _full_fp32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def _close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.double().cpu(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 33])
@torch.inference_mode()
def test_linear(num_rows: int, dtype: torch.dtype) -> None:
    generator = fresh_generator()
    x = torch.randn(num_rows, 576, generator=generator).to(dtype)
    weight = (torch.randn(192, 576, generator=generator) / 24).to(dtype)
    bias = torch.randn(192, generator=generator).to(dtype)
    got = lmi_kernels.linear(x.to(GPU), lmi_kernels.pack(weight.to(GPU), bias.to(GPU)))
    assert got.dtype == dtype
    _close(got, F.linear(x.double(), weight.double(), bias.double()), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_rms_norm(dtype: torch.dtype) -> None:
    generator = fresh_generator()
    x = torch.randn(33, 576, generator=generator).to(dtype)
    weight = torch.randn(576, generator=generator).to(dtype)
    scale = (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    _close(lmi_kernels.rms_norm(x.to(GPU), weight.to(GPU), 1e-5), x.double() * scale * weight.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_rotary(dtype: torch.dtype) -> None:
    generator = fresh_generator()
    x = torch.randn(7, 3, 64, generator=generator).to(dtype)
    angles = torch.rand(7, 1, 32, generator=generator) * 6.3
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = angles.double().cos(), angles.double().sin()
    got = x.to(GPU)
    signed_sin = torch.cat((-angles.sin(), angles.sin()), -1)
    lmi_kernels.rotary_(got, torch.cat((angles, angles), -1).cos().to(GPU), signed_sin.to(GPU))
    _close(got, torch.cat((first * cos - second * sin, second * cos + first * sin), -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(33, 512, generator=fresh_generator()).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    _close(lmi_kernels.silu_and_mul(gate_up.to(GPU)), F.silu(gate) * up, dtype)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_store_kv_and_attention(dtype: torch.dtype, contiguous: bool) -> None:
    """Single tokens and one chunk over a cache that was written token by token."""
    generator = fresh_generator()
    block_size, num_blocks, kv_heads, heads, head_dim = 16, 64, 3, 9, 64
    seq_lens = integers(generator, 2, 100, 5)
    query_lens = [1, 1, 1, 1, int(torch.randint(2, seq_lens[4] + 1, (1,), generator=generator))]
    needed = [-(-seq_len // block_size) for seq_len in seq_lens]
    order = (
        list(range(num_blocks)) if contiguous else torch.randperm(num_blocks, generator=generator).tolist()
    )
    tables = [order[sum(needed[:i]) : sum(needed[: i + 1])] for i in range(5)]
    singles = decode_order(seq_lens[:4], tables[:4], contiguous)
    seq_lens, tables = [seq_lens[i] for i in (*singles, 4)], [tables[i] for i in (*singles, 4)]

    pool = torch.zeros(2, kv_heads, num_blocks, block_size, head_dim, dtype=dtype, device=GPU)
    for seq_len, table in zip(seq_lens, tables, strict=True):
        slots = [table[p // block_size] * block_size + p % block_size for p in range(seq_len)]
        kv = torch.randn(seq_len, 2, kv_heads, head_dim, generator=generator).to(dtype).to(GPU)
        lmi_kernels.store_kv(kv, pool, torch.tensor(slots, device=GPU))
    q = torch.randn(4 + query_lens[4], heads, head_dim, generator=generator).to(dtype)
    limits = GroupLimits(block_size, num_blocks, kv_heads, max_keys=2048)
    groups = plan_decodes(seq_lens[:4], tables[:4], limits, contiguous, GPU)
    groups.append(plan_chunk(4, query_lens[4], seq_lens[4], tables[4], limits, GPU))
    out = torch.empty(q.shape, dtype=dtype, device=GPU)
    lmi_kernels.attention(q.to(GPU), pool, groups, lmi_kernels.Workspace(), out)
    _close(out, attention_reference(q, pool.cpu(), query_lens, seq_lens, tables), dtype)
