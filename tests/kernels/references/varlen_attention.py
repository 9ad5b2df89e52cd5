"""Reference for `varlen_attention`, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmi_kernels.attention.paged_sequences import PagedSequences
from lmi_kernels.attention.varlen import varlen_attention
from tests.kernels.references.attention_reference import attention_reference, example_cache, example_rules
from tests.kernels.references.check import Inputs, OpCheck, Results

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


def _launch(qkv: torch.Tensor, num_heads: int, **batch: Any) -> Results:
    # The output has one head more than the queries. Queries are part of wider rows, as in a fused projection.
    wide = qkv.new_full((qkv.shape[0], num_heads + 1, qkv.shape[2]), _UNTOUCHED)
    varlen_attention(qkv[:, :num_heads], out=wide[:, :num_heads], **batch)
    return (wide,)


def _reference(qkv: torch.Tensor, num_heads: int, max_query_len: int, **batch: Any) -> Results:
    out = attention_reference(qkv[:, :num_heads], **batch)
    out[int(batch["cu_seqlens_q"][-1]) :] = _UNTOUCHED
    return (torch.cat((out, torch.full_like(out[:, :1], _UNTOUCHED)), dim=1),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield batches of sequences, written as (keys, queries). (0, 0) is padding."""

    def example(
        lens: list[tuple[int, int]], shape: _Shape, window: int | None = None, **rules: Any
    ) -> Inputs:
        heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        pool, sequences = example_cache(generator, dtype, lens, kv_heads, head_dim, shape.block_size, window)
        query_lens = torch.tensor([0, *(queries for _, queries in lens)])
        # The last two rows belong to no sequence.
        qkv = torch.randn(int(query_lens.sum()) + 2, heads + 2 * kv_heads, head_dim, generator=generator)
        return {
            "qkv": qkv.to(dtype),
            "num_heads": heads,
            "pool": pool,
            "sequences": sequences,
            "cu_seqlens_q": query_lens.cumsum(0).int(),
            "max_query_len": int(query_lens.max()) + int(torch.randint(2, (), generator=generator)),
            # A larger scale than usual, so that scores differ and few keys dominate.
            "rules": example_rules(2.0 * head_dim**-0.5, heads, generator, window=window, **rules),
        }

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


def _production_call(dtype: torch.dtype, query_len: int, shape: _Shape, **rules: Any) -> Inputs:
    heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    numbers = torch.empty(2, 512, dtype=torch.int32, device="meta")
    return {
        "qkv": torch.empty(query_len, heads + 2 * kv_heads, head_dim, dtype=dtype, device="meta"),
        "num_heads": heads,
        "pool": torch.empty(2, kv_heads, 4096, shape.block_size, head_dim, dtype=dtype, device="meta"),
        "sequences": PagedSequences(numbers, numbers[0, :2], numbers[0, :2]),
        "cu_seqlens_q": numbers[0, :3],
        "max_query_len": query_len,
        "rules": example_rules(head_dim**-0.5, heads, None, **rules),
    }


CHECKS = (OpCheck("varlen_attention", _launch, _reference, _examples, _production),)
