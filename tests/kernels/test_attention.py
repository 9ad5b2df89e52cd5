"""Attention in torch, which is used without native kernels, against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmi_kernels import PagedSequences, ScoreRules, SequenceRows, attention, store_kv
from tests.kernels.references.attention_reference import attention_reference
from tests.support.seeds import fresh_generator

UNTOUCHED = 12345.0
BLOCK_SIZE = 4
LENGTHS = ((9, 1), (1, 1), (21, 21), (40, 13), (17, 1), (12, 12))
"""Number of keys and number of queries of each sequence."""


def _rules(head_dim: int, num_heads: int) -> dict[str, ScoreRules]:
    generator = fresh_generator()
    plain = ScoreRules(head_dim**-0.5)
    slopes = torch.rand(num_heads, generator=generator)
    sinks = torch.randn(num_heads, generator=generator) * 2
    return {
        "plain": plain,
        "scale": replace(plain, scale=1.7),
        "window": replace(plain, window=7),
        "window of one": replace(plain, window=1),
        "window of all": replace(plain, window=40),
        "softcap": replace(plain, softcap=1.5),
        "alibi": replace(plain, alibi_slopes=slopes),
        "sinks": replace(plain, sinks=sinks),
        "all": ScoreRules(0.4, 6, 2.0, slopes, sinks),
    }


def _attend(q: torch.Tensor, pool: torch.Tensor, tables: torch.Tensor, rules: ScoreRules) -> torch.Tensor:
    """Compute attention. Blocks before a sequence's window are replaced with block 0, which holds NaN."""
    sequences, row = [], 0
    for table, (keys, queries) in zip(tables, LENGTHS, strict=True):
        blocks = table[: -(-keys // BLOCK_SIZE)].clone()
        if rules.window is not None:
            blocks[: max(0, keys - queries + 1 - rules.window) // BLOCK_SIZE] = 0
        sequences.append(SequenceRows(row, queries, keys, blocks))
        row += queries
    out = torch.full_like(q, UNTOUCHED)
    attention(q, pool, sequences, rules, out)
    return out


@pytest.mark.parametrize("name", _rules(1, 1))
@pytest.mark.parametrize(
    ("kv_heads", "group_size", "head_dim"), [(1, 1, 2), (3, 3, 64), (2, 4, 6), (1, 7, 80)]
)
@torch.inference_mode()
def test_attention_equals_the_reference_and_reads_only_its_own_slots(
    kv_heads: int, group_size: int, head_dim: int, name: str
) -> None:
    rules = _rules(head_dim, kv_heads * group_size)[name]
    generator = fresh_generator()
    # Each sequence has shuffled blocks.
    max_blocks = max(-(-keys // BLOCK_SIZE) for keys, _ in LENGTHS)
    tables = 1 + torch.randperm(len(LENGTHS) * max_blocks, generator=generator).view(-1, max_blocks)
    # One layer of a cache of three. Unwritten slots are NaN.
    pool = torch.full((3, 2, kv_heads, 1 + tables.numel(), BLOCK_SIZE, head_dim), torch.nan)[1]
    for table, (keys, _) in zip(tables, LENGTHS, strict=True):
        positions = torch.arange(keys)
        kv = torch.randn(keys, 2, kv_heads, head_dim, generator=generator)
        store_kv(kv, pool, table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)
    before = pool.clone()
    query_lens = torch.tensor([queries for _, queries in LENGTHS])
    num_tokens = int(query_lens.sum())
    q = torch.randn(num_tokens + 2, kv_heads * group_size, head_dim, generator=generator)
    out = _attend(q, pool, tables, rules)
    sequences = PagedSequences(
        tables, torch.arange(len(LENGTHS)), torch.tensor([keys for keys, _ in LENGTHS])
    )
    bounds = torch.cat((torch.zeros(1, dtype=torch.int64), query_lens.cumsum(0)))
    expected = attention_reference(q[:num_tokens], pool, sequences, bounds, rules)
    torch.testing.assert_close(out[:num_tokens].double(), expected, rtol=0, atol=3e-5)
    assert bool((out[num_tokens:] == UNTOUCHED).all())
    torch.testing.assert_close(pool, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("group_size", [1, 3])
def test_the_reference_is_causal_attention(group_size: int) -> None:
    """Check the reference itself against torch, on a pool with blocks in order."""
    generator = fresh_generator()
    pool = torch.randn(2, 2, 3, 4, 6, generator=generator)
    q = torch.randn(10, 2 * group_size, 6, generator=generator)
    keys, values = pool.reshape(2, 2, 12, 6)[:, :, :10].double()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(0, 1), keys, values, is_causal=True, enable_gqa=True
    )
    sequence = PagedSequences(torch.tensor([[0, 1, 2]]), torch.tensor([0]), torch.tensor([10]))
    found = attention_reference(q, pool, sequence, torch.tensor([0, 10]), ScoreRules(6**-0.5))
    torch.testing.assert_close(found, expected.transpose(0, 1))
