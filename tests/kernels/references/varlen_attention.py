"""Reference for `varlen_attention`, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules
from lmi_kernels.attention.varlen import varlen_attention
from tests.kernels.references.attention_reference import attention_reference
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results

_UNTOUCHED = 7.0
"""Value of output rows without a sequence, before and after."""


@dataclass(frozen=True, slots=True)
class _Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16


_SMOLLM2 = _Shape(9, 3, 64)
_FALCON_40B = _Shape(128, 8, 64)
_FALCON_7B = _Shape(71, 1, 64)
_LLAMA_8B = _Shape(32, 8, 128)
_QWEN3 = _Shape(16, 8, 128)
_GEMMA2_9B = _Shape(16, 8, 256)
_GPT_OSS_20B = _Shape(64, 8, 64)


def _launch(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    block_tables: torch.Tensor,
    table_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    max_query_len: int,
    num_heads: int,
    rules: ScoreRules,
) -> Results:
    # The output has one head more than the queries. Queries are part of wider rows, as in a fused projection.
    wide = qkv.new_full((qkv.shape[0], num_heads + 1, qkv.shape[2]), _UNTOUCHED)
    sequences = PagedSequences(block_tables, table_rows, seq_lens)
    rules = replace(rules, alibi_slopes=alibi_slopes, sinks=sinks)
    q, out = qkv[:, :num_heads], wide[:, :num_heads]
    varlen_attention(q, pool, sequences, cu_seqlens_q, max_query_len, rules, out)
    return (wide,)


def _reference(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    block_tables: torch.Tensor,
    table_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    max_query_len: int,
    num_heads: int,
    rules: ScoreRules,
) -> Results:
    rules = replace(rules, alibi_slopes=alibi_slopes, sinks=sinks)
    out = attention_reference(
        qkv[:, :num_heads], pool, block_tables, table_rows, seq_lens, cu_seqlens_q, rules
    )
    out[int(cu_seqlens_q[-1]) :] = _UNTOUCHED
    return (torch.cat((out, torch.full_like(out[:, :1], _UNTOUCHED)), dim=1),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield batches of sequences, written as (keys, queries). (0, 0) is padding."""

    def example(
        sequences: list[tuple[int, int]],
        shape: _Shape,
        alibi: bool = False,
        sinks: bool = False,
        **rules: float,
    ) -> Inputs:
        return _example(sequences, shape, alibi, sinks, rules, generator, dtype)

    mixed = [(70, 1), (3, 1), (0, 0), (80, 12), (21, 21), (0, 0), (5, 3)]
    # Single tokens, first chunks, later chunks, and all of these in one batch.
    yield example([(1, 1), (100, 1), (0, 0), (17, 1)], _Shape(4, 1, 64))
    yield example([(33, 33), (2, 2)], _Shape(2, 2, 32))
    yield example([(140, 30)], _Shape(6, 2, 64, 32))
    yield example(mixed, _Shape(4, 1, 128))
    # Rules: windows that start within a tile or at its first key, and one longer than all sequences.
    for window in (1, 21, 32, 1000):
        yield example([(120, 45), (97, 1), (10, 10)], _Shape(2, 1, 32), window=window)
    yield example(mixed, _Shape(3, 1, 64), softcap=3.0)
    yield example(mixed, _Shape(4, 2, 32), alibi=True)
    yield example(mixed, _Shape(2, 2, 16), alibi=True, softcap=2.0, window=19)
    yield example(mixed, _Shape(6, 2, 64), sinks=True)
    yield example(mixed, _Shape(3, 1, 32), sinks=True, window=9)
    # Several tokens per sequence, as in speculative decoding.
    yield example([(64, 4), (65, 4), (4, 4)], _Shape(3, 1, 64))
    # Query heads per KV head, head dims, block sizes.
    yield example([(34, 2), (20, 1)], _Shape(71, 1, 64))
    yield example([(67, 5), (32, 1)], _Shape(16, 1, 80, 64))
    yield example([(11, 11), (130, 2)], _Shape(16, 2, 96, 128))
    yield example([(80, 11)], _Shape(1, 1, 256))
    yield example([(50, 13)], _Shape(3, 3, 64, 8))
    yield example([(75, 13)], _Shape(2, 1, 16, 12))
    # More sequences than the search for a program's sequence loads at a time.
    yield example([(0, 0)] * 300 + [(9, 9)] + [(0, 0)] * 230 + [(40, 7), (3, 1)], _Shape(2, 1, 16))


def _example(
    lens: list[tuple[int, int]],
    shape: _Shape,
    alibi: bool,
    sinks: bool,
    rules: dict[str, float],
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Inputs:
    """Make a batch with shuffled pages, NaN where nothing may be read, and two rows without a sequence."""
    num_heads, head_dim, block_size = shape.num_heads, shape.head_dim, shape.block_size
    pages = [-(-keys // block_size) for keys, _ in lens]
    num_blocks, num_poisoned = sum(pages) + 3, 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    poisoned = order[:num_poisoned]
    pool = torch.full((2, shape.num_kv_heads, num_blocks, block_size, head_dim), torch.nan)
    # Table entries after a sequence's keys, and unused rows, point to a poisoned page.
    table_rows = torch.randperm(len(lens) + 2, generator=generator)[: len(lens)]
    block_tables = torch.full((len(lens) + 2, max(pages) + 2), poisoned[0])
    next_page = num_poisoned
    for row, (keys, queries), used in zip(table_rows.tolist(), lens, pages, strict=True):
        own = torch.tensor(order[next_page : next_page + used], dtype=torch.int64)
        block_tables[row, :used] = own
        first = max(0, keys - queries + 1 - int(rules["window"])) if "window" in rules else 0
        content = torch.full((2, shape.num_kv_heads, used * block_size, head_dim), torch.nan)
        content[:, :, first:keys] = torch.randn(content[:, :, first:keys].shape, generator=generator)
        pool[:, :, own] = content.view(2, shape.num_kv_heads, used, block_size, head_dim)
        next_page += used
    query_lens = torch.tensor([0, *(queries for _, queries in lens)])
    num_rows = int(query_lens.sum()) + 2
    qkv = torch.randn(num_rows, num_heads + 2 * shape.num_kv_heads, head_dim, generator=generator)
    slopes = torch.rand(num_heads, generator=generator) if alibi else None
    return {
        "qkv": qkv.to(dtype),
        "pool": pool.to(dtype),
        "block_tables": block_tables.int(),
        "table_rows": torch.where(torch.tensor(pages) > 0, table_rows, 1 << 30).int(),
        "seq_lens": torch.tensor([keys for keys, _ in lens]).int(),
        "cu_seqlens_q": query_lens.cumsum(0).int(),
        "alibi_slopes": slopes,
        "sinks": 2 + torch.randn(num_heads, generator=generator) if sinks else None,
        "max_query_len": int(query_lens.max()) + int(torch.randint(2, (), generator=generator)),
        "num_heads": num_heads,
        # A larger scale than usual, so that scores differ and few keys dominate.
        "rules": ScoreRules(2.0 * head_dim**-0.5, **rules),  # type: ignore[arg-type]
    }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield few and many packed rows of two sequences. One variant is enough for fp16: only type names differ."""
    yield _production_call(dtype, 1, _LLAMA_8B)
    if dtype != torch.bfloat16:
        return
    yield _production_call(dtype, 1, _SMOLLM2)
    for shape in (_LLAMA_8B, _SMOLLM2):
        yield _production_call(dtype, 2048, shape)
    yield _production_call(dtype, 2048, _LLAMA_8B, window=4096)
    yield _production_call(dtype, 2048, _FALCON_7B, alibi=True)
    yield _production_call(dtype, 2048, _GEMMA2_9B, softcap=50.0)
    yield _production_call(dtype, 2048, _GPT_OSS_20B, sinks=True, window=128)
    # These differ in query heads per KV head and in page size, which affect only addresses.
    for shape in (_FALCON_40B, _FALCON_7B, _QWEN3, replace(_LLAMA_8B, block_size=64)):
        yield _production_call(dtype, 2048, shape)


def _production_call(
    dtype: torch.dtype,
    query_len: int,
    shape: _Shape,
    alibi: bool = False,
    sinks: bool = False,
    **rules: float,
) -> Inputs:
    rows = shape.num_heads + 2 * shape.num_kv_heads
    qkv = torch.empty(query_len, rows, shape.head_dim, dtype=dtype, device="meta")
    pool = (2, shape.num_kv_heads, 4096, shape.block_size, shape.head_dim)
    numbers = torch.empty(2, 512, dtype=torch.int32, device="meta")
    return {
        "qkv": qkv,
        "pool": torch.empty(pool, dtype=dtype, device="meta"),
        "block_tables": numbers,
        "table_rows": numbers[0, :2],
        "seq_lens": numbers[0, :2],
        "cu_seqlens_q": numbers[0, :3],
        "alibi_slopes": torch.empty(shape.num_heads, device="meta") if alibi else None,
        "sinks": torch.empty(shape.num_heads, device="meta") if sinks else None,
        "max_query_len": query_len,
        "num_heads": shape.num_heads,
        "rules": ScoreRules(shape.head_dim**-0.5, **rules),  # type: ignore[arg-type]
    }


CHECKS = (OpCheck("varlen_attention", _launch, _reference, _examples, _production, ROUNDING),)
