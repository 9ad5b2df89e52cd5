from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmi_kernels import Workspace, attention, store_kv
from lmi_kernels.attention.grouped import attention_reference
from lmi_kernels.attention.grouped_plan import decode_order, plan_chunk, plan_decodes
from tests.kernels.layouts import Layout, layouts
from tests.support.examples import examples
from tests.support.seeds import fresh_generator, generator_from

UNTOUCHED = 12345.0


def _rows_in_order(layout: Layout) -> list[int]:
    """The layout's sequences as a step has them: single tokens as attention likes them, then chunks."""
    singles = layout.num_singles
    order = decode_order(layout.seq_lens[:singles], layout.block_tables[:singles], layout.contiguous)
    return [*order, *range(singles, len(layout.seq_lens))]


def _attend(
    layout: Layout, order: list[int], q: torch.Tensor, pool: torch.Tensor, workspace: Workspace
) -> torch.Tensor:
    lens = [layout.seq_lens[i] for i in order]
    tables = [layout.block_tables[i] for i in order]
    singles = layout.num_singles
    limits = layout.limits(pool.shape[1])
    groups = plan_decodes(lens[:singles], tables[:singles], limits, layout.contiguous)
    row = singles
    for place in range(singles, len(order)):
        query_len = layout.query_lens[order[place]]
        groups.append(plan_chunk(row, query_len, lens[place], tables[place], limits))
        row += query_len
    out = torch.full_like(q, UNTOUCHED)
    attention(q, pool, groups, workspace, out)
    return out


def _filled_pool(
    layout: Layout, kv_heads: int, head_dim: int, garbage: float, generator: torch.Generator
) -> torch.Tensor:
    """One layer of a cache of three: real keys and values in the sequences' slots, garbage in all others."""
    shape = (3, 2, kv_heads, layout.num_blocks, layout.block_size, head_dim)
    pool = (torch.randn(shape, generator=generator) * garbage)[1]
    for seq_len, table in zip(layout.seq_lens, layout.block_tables, strict=True):
        slots = [
            table[p // layout.block_size] * layout.block_size + p % layout.block_size for p in range(seq_len)
        ]
        kv = torch.randn(seq_len, 2, kv_heads, head_dim, generator=generator)
        store_kv(kv, pool, torch.tensor(slots))
    return pool


@examples(150)
@given(
    layout=layouts(),
    kv_heads=st.integers(1, 3),
    share=st.integers(1, 4),
    head_dim=st.sampled_from([2, 6, 8, 64]),
    garbage=st.sampled_from([0.0, 1.0, 1e8]),
    padding=st.integers(0, 2),
    seed=st.integers(0, 2**31 - 1),
)
@torch.inference_mode()
def test_equals_the_reference_in_double_precision(
    layout: Layout, kv_heads: int, share: int, head_dim: int, garbage: float, padding: int, seed: int
) -> None:
    generator = generator_from(seed)
    pool = _filled_pool(layout, kv_heads, head_dim, garbage, generator)
    before = pool.clone()
    order = _rows_in_order(layout)
    num_tokens = sum(layout.query_lens)
    q = torch.randn(num_tokens + padding, kv_heads * share, head_dim, generator=generator)
    workspace = Workspace()
    workspace.take((20_000,), like=q).fill_(float("nan"))  # what an earlier call left is never read
    out = _attend(layout, order, q, pool, workspace)
    expected = attention_reference(
        q[:num_tokens],
        pool,
        [layout.query_lens[i] for i in order],
        [layout.seq_lens[i] for i in order],
        [layout.block_tables[i] for i in order],
    )
    torch.testing.assert_close(out[:num_tokens].double(), expected, rtol=0, atol=1e-5)
    assert bool((out[num_tokens:] == UNTOUCHED).all())
    assert torch.equal(pool, before)


@examples(60)
@given(layout=layouts(), seed=st.integers(0, 2**31 - 1))
@torch.inference_mode()
def test_what_stands_in_foreign_slots_changes_no_bit(layout: Layout, seed: int) -> None:
    generator = generator_from(seed)
    order = _rows_in_order(layout)
    q = torch.randn(sum(layout.query_lens), 4, 8, generator=generator)
    state = generator.get_state()
    pools = []
    for garbage in (0.0, 1e6):
        generator.set_state(state)
        pools.append(_filled_pool(layout, 2, 8, garbage, generator))
    quiet, loud = (_attend(layout, order, q, pool, Workspace()) for pool in pools)
    assert torch.equal(quiet, loud)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_low_precision_pools(dtype: torch.dtype) -> None:
    generator = fresh_generator()
    layout = Layout(4, 12, 1000, False, [9, 7, 11], [1, 1, 5], 2, [[7, 2, 9], [3, 1], [4, 0, 8]])
    pool = _filled_pool(layout, 2, 16, 1.0, generator).to(dtype)
    q = torch.randn(7, 4, 16, generator=generator).to(dtype)
    out = _attend(layout, [0, 1, 2], q, pool, Workspace())
    expected = attention_reference(q, pool, layout.query_lens, layout.seq_lens, layout.block_tables)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("share", [1, 2, 3, 4])
def test_the_reference_is_dense_causal_attention(share: int) -> None:
    """The oracle itself, on a pool whose blocks are in order: softmax(q k^T / sqrt(d)) v, future hidden."""
    generator = fresh_generator()
    pool = torch.randn(2, 2, 3, 4, 6, generator=generator)
    q = torch.randn(10, 2 * share, 6, generator=generator)
    keys, values = pool.reshape(2, 2, 12, 6)[:, :, :10].double().repeat_interleave(share, dim=1)
    scores = torch.einsum("qhd,hkd->hqk", q.double(), keys) / 6**0.5
    hidden = torch.ones(10, 10, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    expected = torch.einsum("hqk,hkd->qhd", weights, values)
    torch.testing.assert_close(attention_reference(q, pool, [10], [10], [[0, 1, 2]]), expected)


def test_workspace_keeps_its_memory_and_grows() -> None:
    workspace = Workspace()
    like = torch.empty(0)
    small = workspace.take((2, 3), like)
    assert small.shape == (2, 3)
    assert small.is_contiguous()
    large = workspace.take((5, 7), like)
    assert large.shape == (5, 7)
    assert workspace.take((2, 3), like).data_ptr() == large.data_ptr()
    assert workspace.take((35,), like).data_ptr() == large.data_ptr()
    half = workspace.take((2,), torch.empty(0, dtype=torch.float16))
    assert half.dtype == torch.float16
